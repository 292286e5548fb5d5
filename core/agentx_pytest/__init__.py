"""The pytest plugin of agentx: fixtures, a marker, and the tests that every plugin should pass.

It is loaded into every test session of an environment with agentx, so it imports only pytest; agentx itself is
imported by the tests that use it.

- Agents under test load no installed plugins by themselves; `@pytest.mark.agentx_plugins("guard.budget")` names those
  that they do load.
- Models on the network are blocked (`AGENTX_ALLOW_MODEL_REQUESTS=0`) unless the variable is set already, or a test is
  marked `@pytest.mark.agentx_network`.
"""

from ._conformance import PluginConformance as PluginConformance
from ._fixtures import agentx_agent as agentx_agent
from ._fixtures import agentx_clock as agentx_clock
from ._fixtures import scripted as scripted
from ._marks import pytest_configure as pytest_configure
from ._marks import pytest_runtest_protocol as pytest_runtest_protocol
from ._marks import pytest_unconfigure as pytest_unconfigure
