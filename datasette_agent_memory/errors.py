"""What goes wrong for reasons that a user can mend."""


class AgentMemoryError(Exception):
    """Something given cannot be used; the message is one line for its user, and names it."""

    #: Whether it was the user who ended what was done.
    is_interruption = False
