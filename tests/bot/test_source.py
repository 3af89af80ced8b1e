import json
from textwrap import dedent

import pytest

from bot.source import Decorator, Summary, summarise


def read(text: str) -> Summary:
    return summarise(dedent(text))


def digests(text: str) -> dict[str, str]:
    return {item.name: item.digest for item in read(text).definitions}


def names(text: str) -> list[tuple[str, str]]:
    return [(item.name, item.kind) for item in read(text).definitions]


def users(summary: Summary, name: str) -> list[str]:
    return [summary.definitions[index].name for index in summary.references.get(name, ())]


def test_definitions_are_found_under_conditions():
    found = names(
        """
        if FLAG:
            def f(): ...
        else:
            def f(): ...
        try:
            class C:
                def m(self): ...
        except ImportError:
            C = None
        with guard():
            x = 1
        for i in range(3):
            y = i
        """
    )
    assert found == [
        ("f", "function"),
        ("f", "function"),
        ("C", "class"),
        ("C.m", "method"),
        ("C", "variable"),
        ("x", "variable"),
        ("i", "variable"),
        ("y", "variable"),
    ]


def test_comments_docstrings_and_layout_do_not_change_a_digest():
    before = digests('def f(a, b=1):\n    """Say."""\n    return g(a, b)\n\nx = [1, 2]\n')
    after = digests(
        '# Header\ndef f(a,\n      b=1):  # why\n    """Say more."""\n\n    return g(a,b)\n'
        "x = [1,\n 2]\n"
    )
    assert before == after


@pytest.mark.parametrize(
    "changed",
    [
        "def f(a, b=2):\n    return a\n",
        "def f(a, *, b=1):\n    return a\n",
        "def f(a: int, b=1):\n    return a\n",
        "@wraps\ndef f(a, b=1):\n    return a\n",
        "if X:\n    def f(a, b=1):\n        return a\n",
        "def f(a, b=1):\n    if a:\n        pass\n    return a\n",
        "async def f(a, b=1):\n    return a\n",
    ],
)
def test_what_runs_changes_a_digest(changed):
    assert digests("def f(a, b=1):\n    return a\n")["f"] != digests(changed)["f"]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("def f(a: b): ...", "def f(a, b): ..."),
        ("def f(a) -> b: ...", "def f(a): b"),
        ("def f(a, b): ...", "def f(a, /, b): ..."),
        ("def f():\n    global a, b", "def f():\n    global a\n    b"),
        ("def f(): Pass", "def f(): pass"),
        ("def f(): x: a", "def f(): x: a = None"),
        ("def f(): return 1", "def f(): return True"),
        ("def f(): return 'a'", "def f(): return a"),
        ("def f(): return g(a)(b)", "def f(): return g(a, b)"),
    ],
)
def test_texts_that_mean_different_things_have_different_digests(one, other):
    assert digests(one)["f"] != digests(other)["f"]


def test_moving_a_statement_out_of_a_block_changes_the_digest():
    inside = digests("def f(a):\n    if a:\n        b()\n        c()\n")
    outside = digests("def f(a):\n    if a:\n        b()\n    c()\n")
    assert inside != outside


def test_local_names_are_no_references():
    summary = read(
        """
        def f(arg):
            local = helper(arg)
            def inner(x):
                return x + local + outer
            return [item for item in local], lambda y: y + z
        """
    )
    assert set(summary.references) == {"helper", "outer", "z"}


def test_references_keep_attributes_of_imported_names_only():
    summary = read(
        """
        import pkg.mod as m
        def f(self):
            return m.sub.g(self.x.y), thing.attr
        """
    )
    assert set(summary.references) == {"m.sub.g", "thing"}


def test_annotations_are_text_but_no_references():
    summary = read("def f(a: A) -> B:\n    c: C = D\n")
    assert set(summary.references) == {"D"}


def test_a_guard_is_referred_to_by_what_it_guards():
    summary = read("if IS_NPU:\n    def f(): ...\n    from a import g\n")
    assert users(summary, "IS_NPU") == ["f", "g"]


def test_imports_of_every_form():
    summary = read(
        """
        import a.b
        import a.c as ac
        from . import d
        from ..e import f as g
        from h import *
        def lazy():
            from i import j
            import importlib
            importlib.import_module(".k")
        if TYPE_CHECKING:
            from l import M
        else:
            from l import N
        """
    )
    entries = [entry[:5] for entry in summary.imports]
    assert entries[:5] == [
        ("a.b", 0, "", "a.b", -1),
        ("a.c", 0, "", "ac", -1),
        ("", 1, "d", "d", -1),
        ("e", 2, "f", "g", -1),
        ("h", 0, "*", "*", -1),
    ]
    assert (entries[5], entries[7]) == (("i", 0, "j", "j", 0), ("k", 1, "", "", 0))
    assert {entry.alias: entry.is_typing_only for entry in summary.imports[8:]} == {
        "M": True,
        "N": False,
    }


def test_decorators_keep_constant_arguments():
    summary = read(
        """
        @dispatch("kda")
        @pytest.fixture(scope="module", autouse=True, params=[1])
        @triton.jit
        def f(): ...
        """
    )
    assert summary.definitions[0].decorators == (
        Decorator("dispatch", ("kda",)),
        Decorator("pytest.fixture", (), (("scope", "module"), ("autouse", True))),
        Decorator("triton.jit"),
    )


def test_statements_say_what_they_write():
    summary = read(
        """
        registry.register(Backend())
        Auto.register(Config, Model, exist_ok=True)
        f.__doc__ = text
        table["k"] = value
        """
    )
    assert [item.writes for item in summary.definitions] == [
        ("Backend", "registry"),
        ("Auto", "Config", "Model"),
        ("f.__doc__",),
        ("table",),
    ]


@pytest.mark.parametrize(
    ("text", "exports"),
    [
        ("__all__ = ['a', 'b']", ("a", "b")),
        ("__all__ = ['a']\n__all__ += ['b']", ("a", "b")),
        ("__all__ = ['a', *other.__all__]", None),
        ("__all__ = ['a']\n__all__ += other.__all__", None),
        ("x = 1", None),
    ],
)
def test_exports_are_kept_when_they_are_literal(text, exports):
    assert read(text).exports == exports


@pytest.mark.parametrize(
    "text",
    ["def __getattr__(name): ...", "globals()['x'] = 1", "for n in N:\n    globals()[n] = 1"],
)
def test_dynamic_exports_are_noticed(text):
    assert read(text).has_dynamic_exports


def test_strings_that_look_like_modules_or_files_are_kept():
    summary = read(
        """
        def f(op):
            load(f"pkg.ops.{op}.backends"), patch("pkg.mod.f"), open("pyproject.toml")
            print("plain", "two words.", f"{op}.x", "https://x.y/z")
        """
    )
    assert set(summary.strings) == {"pkg.ops.*.backends", "pkg.mod.f", "pyproject.toml"}


def test_fixtures_asked_for_are_parameters_and_literal_names():
    summary = read(
        """
        @pytest.mark.usefixtures("quiet")
        def test_a(device): request.getfixturevalue("seed")
        @fixture
        def device(request): ...
        def helper(other): ...
        """
    )
    assert set(summary.requests) == {"quiet", "device", "seed", "request"}


def test_a_main_block_is_kept_apart():
    assert names("if __name__ == '__main__':\n    main()\n") == [("__main__", "main")]


@pytest.mark.parametrize(
    "text",
    [
        "def f(:\n",
        b"x = '\xff'\n",
        "x = '\0'",
        "(" * 500 + ")" * 500,
        "x = " + "-" * 5000 + "1",
        "x = " + "+".join(["a"] * 5000),
    ],
)
def test_what_does_not_parse_is_a_fault(text):
    summary = summarise(text)
    assert summary.fault is not None
    assert summary.fault.message
    assert summary.definitions == ()


def test_bytes_are_decoded_as_python_does():
    latin = "# -*- coding: latin-1 -*-\nx = '\xe9'\n".encode("latin-1")
    assert digests("x = '\xe9'\n")["x"] == summarise(latin).definitions[0].digest


def test_json_round_trip():
    text = """
        import a.b as c
        from x import *
        __all__ = ["f"]
        @dispatch("op", n=1)
        def f(p=c.d): ...
        class K(f):
            def m(self): return "p.q"
        R.add(K)
        def test_f(fix): ...
        """
    summary = read(text)
    assert Summary.from_json(json.loads(json.dumps(summary.to_json()))) == summary
    broken = summarise("def")
    assert Summary.from_json(json.loads(json.dumps(broken.to_json()))) == broken


@pytest.mark.parametrize("data", [None, 3, [], {}, [1] * 9, [[[1]], {}, [], {}, {}, 0, 0, 0, 0]])
def test_foreign_json_is_refused(data):
    with pytest.raises(ValueError, match="summary"):
        Summary.from_json(data)
