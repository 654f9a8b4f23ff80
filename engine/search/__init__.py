"""Search over the whole text of all sessions of a store."""

from treering.engine.search.searching import FieldMatch, SearchHit, SearchPage, search_sessions

__all__ = ["FieldMatch", "SearchHit", "SearchPage", "search_sessions"]
