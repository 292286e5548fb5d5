"""Stores that outlive a process, and what a further one is made of; `import agentx` does not load it.

SQLiteStore                          sessions in one SQLite file
export_session, import_session       a session as JSON Lines, of any store and into any
Record, record_of, event_of_record   an event as the columns of a table, and back; long contents beside it
Bookings, Booking                    accounts that several processes share
"""

from ._accounts import Booking, Bookings
from ._lines import export_session, import_session
from ._records import CONTENT_LIMIT, Record, event_of_record, record_of
from .sqlite import SQLiteStore

__all__ = [
    "CONTENT_LIMIT",
    "Booking",
    "Bookings",
    "Record",
    "SQLiteStore",
    "event_of_record",
    "export_session",
    "import_session",
    "record_of",
]
