"""Pages and JSON."""

from .chunk import chunk_page as chunk_page
from .file import file_page as file_page
from .home import home_page as home_page
from .map import map_page as map_page
from .queries import queries_page as queries_page
from .search import agent_page as agent_page
from .search import explain_page as explain_page
from .search import search_page as search_page
from .status import status_page as status_page
