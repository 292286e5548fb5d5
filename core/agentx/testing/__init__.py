"""What tests of agents and plugins need: models from a script, a clock, faults, and checks.

Nothing of it is imported by `import agentx`.
"""

from ._clock import FakeClock as FakeClock
from ._conformance import CHECKS as CHECKS
from ._conformance import ConformanceError as ConformanceError
from ._conformance import NotChecked as NotChecked
from ._conformance import check as check
from ._conformance import problems as problems
from ._exercise import Exercise as Exercise
from ._exercise import exercise as exercise
from ._faults import Cut as Cut
from ._faults import Delay as Delay
from ._faults import FaultPlugin as FaultPlugin
from ._faults import FaultyModel as FaultyModel
from ._faults import Hang as Hang
from ._history import HistoryError as HistoryError
from ._history import check_history as check_history
from ._models import EchoModel as EchoModel
from ._models import FunctionModel as FunctionModel
from ._models import ScriptedModel as ScriptedModel
from ._models import ScriptError as ScriptError
from ._models import call as call
from ._models import count_tokens as count_tokens
from ._models import pieces as pieces
from ._replay import ReplayError as ReplayError
from ._replay import ReplayModel as ReplayModel
from ._replay import read_events as read_events
from ._replay import record as record
from ._replay import write_events as write_events
from ._scenario import Subject as Subject
