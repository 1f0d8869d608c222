"""Embedding providers: one module each, found by their names in chain.py."""

NO_PROVIDER = "none"
#: The model's name in an index without vectors, as the peer writes it.
KEYWORDS_ONLY_MODEL = "fts-only"
