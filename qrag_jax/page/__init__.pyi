"""The public names, by where they live; `__init__.py` loads each on first use."""

from .frame import Form as Form
from .frame import read_spans as read_spans
from .frame import style as style
from .pages import ask_end as ask_end
from .pages import ask_passages as ask_passages
from .pages import ask_start as ask_start
from .pages import document_page as document_page
from .pages import login_page as login_page
from .pages import search_page as search_page
from .pages import start_page as start_page
from .trace import trace_page as trace_page
