"""Tools for a first run: `agentx run -m local/auto -t examples/tools.py "What is the weather in Oslo?"`."""

from __future__ import annotations

from pathlib import Path

from agentx import tool

WEATHER = {"oslo": "4 °C, rain", "rome": "21 °C, sunny", "nairobi": "24 °C, cloudy", "lima": "18 °C, fog"}


@tool
def weather(city: str) -> str:
    """Current weather in a city.

    Args:
        city: the name of the city.
    """
    known = WEATHER.get(city.lower())
    return f"{city}: {known} (example data)" if known else f"no example data for {city}; there is {', '.join(WEATHER)}"


@tool
def add(a: float, b: float) -> float:
    """Add two numbers."""
    return a + b


@tool
def read_file(path: str) -> str:
    """Read a text file of the working directory."""
    folder = Path.cwd().resolve()
    file = (folder / path).resolve()
    if not file.is_relative_to(folder):
        raise PermissionError(f"{path} is outside of the working directory")
    return file.read_text(encoding="utf-8")[:2000]
