"""Datasette plugin: see what an AI agent remembers, and why it found or missed something."""

from datasette import hookimpl


@hookimpl
def register_commands(cli):  # type: ignore[no-untyped-def]
    from .cli import agent_memory

    cli.add_command(agent_memory)


@hookimpl
def prepare_connection(conn, database, datasette):  # type: ignore[no-untyped-def]
    from .connections import prepare, refuse_unreadable_vectors
    from .embeddings.server import providers_of

    prepare(conn, providers_of(datasette))
    refuse_unreadable_vectors(conn, database)


@hookimpl
def startup(datasette):  # type: ignore[no-untyped-def]
    from .databases import start

    return start(datasette)


@hookimpl
def prepare_jinja2_environment(env, datasette):  # type: ignore[no-untyped-def]
    from .dates import moment_in_words
    from .files import file_href
    from .sql_html import sql_html
    from .visible import visible

    # Names of filters are global.
    env.filters["agent_memory_visible"] = visible
    env.filters["agent_memory_moment"] = moment_in_words
    env.globals["agent_memory_file_href"] = file_href
    env.filters["agent_memory_sql"] = sql_html


@hookimpl
def register_secrets():  # type: ignore[no-untyped-def]
    from .embeddings.server import secrets

    return secrets()


@hookimpl
def register_routes():  # type: ignore[no-untyped-def]
    from . import views

    database = r"^/(?P<database>[^/]+)/-/agent-memory"
    return [
        (r"^/-/agent-memory(?P<format>\.json)?$", views.home_page),
        (database + r"(?P<format>\.json|\.csv|\.md)?$", views.search_page),
        (database + r"/explain(?P<format>\.json)?$", views.explain_page),
        (database + r"/agent(?P<format>\.json)?$", views.agent_page),
        (database + r"/chunk(?P<format>\.json)?$", views.chunk_page),
        (database + r"/file(?P<format>\.json)?$", views.file_page),
        (database + r"/map(?P<format>\.json)?$", views.map_page),
        (database + r"/queries(?P<format>\.json)?$", views.queries_page),
        (database + r"/status(?P<format>\.json)?$", views.status_page),
    ]


@hookimpl
def menu_links(datasette, actor, request):  # type: ignore[no-untyped-def]
    from .databases import memory_menu_links

    return memory_menu_links(datasette, actor)


@hookimpl
def database_actions(datasette, actor, database):  # type: ignore[no-untyped-def]
    from .databases import memory_actions

    return memory_actions(datasette, actor, database)


@hookimpl
def table_actions(datasette, actor, database, table):  # type: ignore[no-untyped-def]
    from .databases import memory_actions

    return memory_actions(datasette, actor, database)


@hookimpl(optionalhook=True)  # 0.65 has none
def query_actions(datasette, actor, database):  # type: ignore[no-untyped-def]
    from .databases import memory_actions

    return memory_actions(datasette, actor, database)


@hookimpl
def canned_queries(datasette, database, actor):  # type: ignore[no-untyped-def]
    # 0.65 only; 1.0a stores queries, which `startup` does.
    from .ready_queries import canned_queries

    return canned_queries(datasette, database, actor)


@hookimpl
def permission_resources_sql(datasette, actor, action):  # type: ignore[no-untyped-def]
    # 1.0a only; 0.65 is told of a query by who asks.
    if action != "view-query":
        return None
    from .ready_queries import permission_rules

    return permission_rules(datasette, actor)


@hookimpl
def get_metadata(datasette, key, database):  # type: ignore[no-untyped-def]
    # 0.65 only; 1.0a has its configuration, which `startup` adds to.
    from .tables import table_metadata

    return table_metadata(datasette, key, database)


@hookimpl
def render_cell(row, value, column, table, database, datasette):  # type: ignore[no-untyped-def]
    from .cells import render_cell

    return render_cell(datasette, row, value, column, table, database)


@hookimpl
def extra_css_urls(datasette, database, columns):  # type: ignore[no-untyped-def]
    from .cells import css_urls

    return css_urls(datasette, database, columns)
