"""What tests of agents and plugins need: models from a script, and checks."""

from ._history import HistoryError as HistoryError
from ._history import check_history as check_history
from ._models import EchoModel as EchoModel
from ._models import FunctionModel as FunctionModel
from ._models import ScriptedModel as ScriptedModel
from ._models import ScriptError as ScriptError
from ._models import call as call
from ._models import pieces as pieces
