"""Tool calls as actions: read without being run, written anew, listed."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learngraph.tools.environments.support.calls import Call, ToolDescription, UnreadableCall, list_calls, read_call

COPY = ToolDescription(
    "copy", "", {"properties": {"source": {}, "to": {}, "force": {"type": "boolean"}}, "required": ["source", "to"]}
)
LIGHT = ToolDescription("light", "", {"properties": {"state": {"enum": ["on", "off"]}}, "required": ["state"]})
STOP = ToolDescription("stop", "", {"properties": {}})
TOOLS = {tool.name: tool for tool in (COPY, LIGHT, STOP)}


@pytest.mark.parametrize(
    ("text", "call"),
    [
        ("copy('a', to='b')", Call("copy", {"source": "a", "to": "b"})),
        (" copy(to=[1, -2.5], source={'x': None}) ", Call("copy", {"to": [1, -2.5], "source": {"x": None}})),
        ("stop()", Call("stop")),
    ],
)
def test_a_call_is_read(text: str, call: Call) -> None:
    assert read_call(text, TOOLS) == call


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "cannot be read; write one call such as"),
        ("copy 'a' to 'b'", "cannot be read"),
        ("stop(); stop()", "cannot be read"),
        ("stop", "is no call"),
        ("shell.stop()", "is no call"),
        ("remove('a')", "no tool 'remove'; there are copy, light, stop"),
        ("stop(1)", "stop takes no arguments, got 1"),
        ("copy('a', 'b', True, 4)", "copy takes source, to, force, got 4"),
        ("copy('a', 'b', where='c')", "each once; got 'where'"),
        ("copy('a', source='b')", "each once; got 'source'"),
        ("copy(**{'source': 'a'})", "got None"),
        ("copy(__import__('os').system('true'), to='b')", "source of copy must be a literal"),
        ("copy(open('x').read(), 'b')", "must be a literal"),
        ("copy(to='a' + 'b')", "must be a literal"),
        ("copy(to=stop())", "must be a literal"),
        ("copy(to=f'{1}')", "must be a literal"),
        ("(" * 5000, "cannot be read"),
        ("copy('" + "x" * 60_000 + "')", "60,008 characters is not read"),
    ],
)
def test_what_is_no_call_with_literals_is_refused_in_words(text: str, said: str) -> None:
    with pytest.raises(UnreadableCall, match=said.replace("(", r"\(")) as raised:
        read_call(text, TOOLS)
    assert len(str(raised.value)) < 200


LITERALS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@given(st.fixed_dictionaries({"source": LITERALS, "to": LITERALS}))
def test_any_call_with_literals_survives_being_written_and_read(arguments: dict[str, object]) -> None:
    call = Call("copy", arguments)
    assert read_call(str(call), TOOLS) == call


@given(st.text(max_size=60))
def test_any_text_is_a_call_or_is_refused(text: str) -> None:
    with contextlib.suppress(UnreadableCall):
        assert read_call(text, TOOLS).name in TOOLS


def test_calls_with_known_arguments_are_listed() -> None:
    assert list_calls(TOOLS.values(), {}) == ("light(state='off')", "light(state='on')", "stop()")
    listed = list_calls([COPY], {"source": ["a", "b"], "to": ["c"]})
    assert listed == ("copy(source='a', to='c')", "copy(source='b', to='c')")
    many = list_calls([COPY], {"source": range(100), "to": range(100)})
    assert len(many) == 24
