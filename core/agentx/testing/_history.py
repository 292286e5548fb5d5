"""What a provider would refuse a history for."""

from agentx._valid_history import HistoryError as HistoryError
from agentx._valid_history import check_history as check_history
