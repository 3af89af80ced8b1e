from textwrap import dedent

import pytest

from bot.impact import Impact, Index, impact
from bot.policy import Python
from bot.source import summarise

SETTINGS = Python(
    tests=["tests/**/test_*.py"],
    inert=["**/*.md", "scripts/**"],
    entry_points=["pkg/ops/*/__init__.py"],
)

# One op with a backend, a layer and a model above it, another op beside it.
TREE = {
    "pkg/__init__.py": "",
    "pkg/device.py": "def probe(): return 1\nDEVICE = probe()\nNAME = 'x'\n",
    "pkg/registry.py": "def dispatch(op): ...\nclass Registry: ...\nclass Backend: ...\n",
    "pkg/ops/__init__.py": "from pkg.ops.kda import chunk_kda\nfrom .gla import chunk_gla\n",
    "pkg/ops/kda/__init__.py": """
        from .chunk import chunk_kda
        from .naive import naive_kda as reference
        __all__ = ["chunk_kda", "reference"]
    """,
    "pkg/ops/kda/chunk.py": """
        import torch
        from pkg.registry import dispatch
        @triton.jit
        def kernel(x): pass
        def launch(x): kernel[(1,)](x)
        class Fn(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x): return launch(x)
        @dispatch("kda")
        def chunk_kda(x, scale=1): return Fn.apply(x)
        def unused(): return 1
    """,
    "pkg/ops/kda/naive.py": "def naive_kda(x): return x\n",
    "pkg/ops/kda/backends/__init__.py": """
        from pkg.registry import Registry
        from pkg.ops.kda.backends.npu import NpuBackend
        registry = Registry("kda")
        registry.register(NpuBackend())
    """,
    "pkg/ops/kda/backends/npu.py": """
        from pkg.registry import Backend
        class NpuBackend(Backend):
            def chunk_kda_verifier(self, x): return True
            def chunk_kda(self, x, scale=1):
                from pkg.ops.kda.backends.kernels import npu_kda
                return npu_kda(x)
            def other_op(self): pass
    """,
    "pkg/ops/kda/backends/kernels.py": "def npu_kda(x): return x\n",
    "pkg/ops/gla/__init__.py": "from pkg.ops.gla.chunk import *\n",
    "pkg/ops/gla/chunk.py": "def chunk_gla(x): return x\ndef _private(x): return x\n",
    "pkg/layers/__init__.py": "from .kda import KDA\n__all__ = ['KDA']\n",
    "pkg/layers/kda.py": """
        import pkg.ops.kda as ops
        class KDA:
            def forward(self, x): return ops.chunk_kda(x)
    """,
    "pkg/models/kda/__init__.py": """
        from auto import AutoModel
        from pkg.models.kda.config import KDAConfig
        from pkg.models.kda.model import KDAModel
        AutoModel.register(KDAConfig, KDAModel)
    """,
    "pkg/models/kda/config.py": "class KDAConfig: pass\n",
    "pkg/models/kda/model.py": """
        from pkg.layers import KDA
        class KDAModel:
            def __init__(self, config): self.layer = KDA()
    """,
    "tests/conftest.py": """
        import pytest
        from pkg.device import NAME
        @pytest.fixture
        def name(): return NAME
    """,
    "tests/models/test_base.py": "def run(config): return build(config)\n",
    "tests/models/test_kda_model.py": """
        from pkg.models.kda.config import KDAConfig
        from .test_base import run
        def test_model(): run(KDAConfig)
    """,
    "tests/ops/test_kda.py": """
        from pkg.ops import chunk_kda
        from pkg.ops.kda import reference
        def test_kda(): assert chunk_kda(1) == reference(1)
    """,
    "tests/ops/test_gla.py": """
        from pkg.ops.gla import chunk_gla
        def test_gla(): chunk_gla(1)
    """,
    "tests/test_device.py": "def test_name(name): assert name\n",
}
MODEL_TESTS = ("tests/models/test_base.py", "tests/models/test_kda_model.py")
KDA_TESTS = (*MODEL_TESTS, "tests/ops/test_kda.py")
ALL_TESTS = tuple(sorted(path for path in TREE if "/test_" in path))


def ask(
    edits: dict[str, str | None],
    *,
    tree: dict[str, str] | None = None,
    also_changed: tuple[str, ...] = (),
) -> Impact:
    """Put a change to the tree: a text replaces or adds a file, None deletes it."""
    base = dict(TREE if tree is None else tree)
    head = {path: text for path, text in {**base, **edits}.items() if text is not None}
    before, after = (
        Index({path: summarise(dedent(text)) for path, text in side.items()}, SETTINGS)
        for side in (base, head)
    )
    return impact(before, after, [*edits, *also_changed])


def edit(path: str, old: str, new: str) -> dict[str, str | None]:
    assert old in TREE[path]
    return {path: TREE[path].replace(old, new)}


def names(items: object) -> list[str]:
    return [item.name for item in items]  # type: ignore[attr-defined]


def test_a_kernel_reaches_tests_through_launcher_class_and_re_exports():
    found = ask(edit("pkg/ops/kda/chunk.py", "def kernel(x): pass", "def kernel(x): x"))
    assert found.tests == KDA_TESTS
    assert names(found.changed) == ["kernel"]
    assert names(found.kernels) == ["kernel"]
    assert names(found.entry_points) == ["chunk_kda"]
    assert not found.widened
    assert found.because["tests/ops/test_kda.py"] == "pkg/ops/kda/chunk.py:kernel"


def test_only_the_users_of_the_changed_definition_are_affected():
    found = ask(edit("pkg/ops/kda/naive.py", "return x", "return -x"))
    assert found.tests == ("tests/ops/test_kda.py",)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("def kernel(x): pass", "# Say why.\n        def kernel(x): pass"),
        ("def launch(x): kernel", "def launch(x):\n            '''Say.'''\n            kernel"),
    ],
)
def test_comments_and_docstrings_select_nothing(old, new):
    found = ask(edit("pkg/ops/kda/chunk.py", old, new))
    assert found == Impact()


def test_a_changed_default_counts():
    assert ask(edit("pkg/ops/kda/chunk.py", "scale=1", "scale=2")).tests == KDA_TESTS


def test_a_star_import_passes_public_names_on():
    found = ask(edit("pkg/ops/gla/chunk.py", "chunk_gla(x): return x", "chunk_gla(x): return 1"))
    assert found.tests == ("tests/ops/test_gla.py",)


def test_a_backend_method_affects_the_function_it_stands_in_for():
    found = ask(edit("pkg/ops/kda/backends/npu.py", "return True", "return False"))
    assert found.tests == KDA_TESTS
    assert "chunk_kda" in names(found.entry_points)


def test_a_kernel_imported_inside_a_backend_method_reaches_the_dispatched_function():
    found = ask(edit("pkg/ops/kda/backends/kernels.py", "return x", "return -x"))
    assert found.tests == KDA_TESTS


def test_a_method_that_stands_in_for_nothing_affects_all_that_its_class_implements():
    found = ask(edit("pkg/ops/kda/backends/npu.py", "other_op(self): pass", "other_op(self): 1"))
    assert found.tests == KDA_TESTS


def test_a_removed_registration_affects_what_was_registered():
    found = ask(edit("pkg/ops/kda/backends/__init__.py", "registry.register(NpuBackend())", ""))
    assert set(KDA_TESTS) <= set(found.tests)


def test_a_changed_dispatched_function_reaches_tests_of_its_backends():
    tree = {
        **TREE,
        "tests/ops/test_npu.py": """
            from pkg.ops.kda.backends.npu import NpuBackend
            def test_npu(): NpuBackend().chunk_kda(1)
        """,
    }
    edits = edit("pkg/ops/kda/chunk.py", "scale=1", "scale=2")
    assert ask(edits, tree=tree).tests == (*KDA_TESTS, "tests/ops/test_npu.py")


def test_a_registration_ties_a_model_to_its_config():
    found = ask(edit("pkg/models/kda/model.py", "KDA()", "KDA().eval()"))
    assert found.tests == MODEL_TESTS


def test_module_attributes_are_followed_through_aliases():
    assert ask(edit("pkg/layers/kda.py", "chunk_kda(x)", "f(x)")).tests == MODEL_TESTS
    tree = {
        **TREE,
        "pkg/facade.py": "from pkg.ops import gla as g\n",
        "tests/test_facade.py": """
            import pkg.facade
            from pkg.facade import g
            def test_facade(): g.chunk.chunk_gla(1)
        """,
    }
    edits = edit("pkg/ops/gla/chunk.py", "chunk_gla(x): return x", "chunk_gla(x): return 1")
    assert "tests/test_facade.py" in ask(edits, tree=tree).tests


@pytest.mark.parametrize(
    "test",
    [
        "from pkg import probe_all\ndef test_x(): probe_all()",
        "import pkg\ndef test_x(): pkg.probe_all()",
        "def test_x(mocker): mocker.patch('pkg.device.probe')",
        "import pkg.device as d\ndef test_x(patch): patch.setattr(d, 'probe', None)",
        "import importlib\ndef test_x(): importlib.import_module('pkg.device').probe()",
        "def test_x():\n    import pkg.device\n    pkg.device.probe()",
        "def test_x():\n    from pkg.device import probe as p\n    p()",
        "class TestX:\n    def test_x(self):\n        import pkg.device as d\n        d.probe()",
        "from pkg.device import probe\ncases = [probe]\n@parametrize('f', cases)\n"
        "def test_x(f): f()",
        "from pkg.device import probe\npytestmark = skipif(probe())\ndef test_x(): ...",
    ],
)
def test_ways_to_get_hold_of_a_name(test):
    tree = {
        **TREE,
        "pkg/__init__.py": "from pkg.device import probe as probe_all\n",
        "tests/test_x.py": test,
    }
    edits = edit("pkg/device.py", "return 1", "return 2")
    assert "tests/test_x.py" in ask(edits, tree=tree).tests


def test_names_made_by_globals_are_followed_by_name():
    tree = {
        **TREE,
        "pkg/__init__.py": "for n in NAMES:\n    globals()[n] = load(n)\n",
        "tests/test_x.py": "import pkg\ndef test_x(): pkg.KDA()\n",
    }
    found = ask(edit("pkg/layers/kda.py", "ops.chunk_kda(x)", "x"), tree=tree)
    assert "tests/test_x.py" in found.tests


def test_imports_for_type_checkers_are_not_followed():
    tree = {
        **TREE,
        "tests/test_x.py": """
            if TYPE_CHECKING:
                from pkg.ops.gla.chunk import chunk_gla
            def test_x(f: chunk_gla): ...
        """,
    }
    edits = edit("pkg/ops/gla/chunk.py", "chunk_gla(x): return x", "chunk_gla(x): return 1")
    assert ask(edits, tree=tree).tests == ("tests/ops/test_gla.py",)


def test_a_name_used_by_a_fixture_reaches_those_who_ask_for_it():
    assert ask(edit("pkg/device.py", "'x'", "'y'")).tests == ("tests/test_device.py",)


def test_an_autouse_fixture_and_a_hook_reach_their_folder():
    tree = {
        **TREE,
        "tests/ops/conftest.py": "@pytest.fixture(autouse=True)\ndef seed(): return 1\n",
        "tests/models/conftest.py": "def pytest_configure(config): return 1\n",
    }
    edits = {"tests/ops/conftest.py": tree["tests/ops/conftest.py"].replace("1", "2")}
    assert ask(edits, tree=tree).tests == ("tests/ops/test_gla.py", "tests/ops/test_kda.py")
    edits = {"tests/models/conftest.py": tree["tests/models/conftest.py"].replace("1", "2")}
    assert ask(edits, tree=tree).tests == MODEL_TESTS


def test_a_fixture_under_another_name_and_from_a_plugin():
    tree = {
        **TREE,
        "tests/conftest.py": "pytest_plugins = ['tests.plugin']\n",
        "tests/plugin.py": "@pytest.fixture(name='card')\ndef make_card(): return 1\n",
        "tests/test_x.py": "@pytest.mark.usefixtures('card')\ndef test_x(): ...\n",
    }
    edits = {"tests/plugin.py": tree["tests/plugin.py"].replace("1", "2")}
    assert ask(edits, tree=tree).tests == ("tests/test_x.py",)


def test_a_changed_test_selects_itself_and_a_changed_helper_its_users():
    found = ask(edit("tests/ops/test_gla.py", "chunk_gla(1)", "chunk_gla(2)"))
    assert found.tests == ("tests/ops/test_gla.py",)
    found = ask(edit("tests/models/test_base.py", "build(config)", "config"))
    assert found.tests == MODEL_TESTS


def test_a_helper_is_affected_when_most_of_what_it_serves_is():
    served = "from .test_base import run\ndef test_y(): run(1)\n"
    tree = {**TREE, "tests/models/test_y.py": served, "tests/models/test_z.py": served}
    found = ask(edit("pkg/models/kda/model.py", "KDA()", "KDA(1)"), tree=tree)
    assert found.tests == ("tests/models/test_kda_model.py",)


def test_a_deleted_definition_affects_those_that_used_it():
    tree = {
        **TREE,
        "pkg/device.py": TREE["pkg/device.py"] + "def gone(): ...\n",
        "tests/test_x.py": "import pkg.device as d\ndef test_x(): d.gone()\n",
    }
    found = ask({"pkg/device.py": TREE["pkg/device.py"]}, tree=tree)
    assert found.tests == ("tests/test_x.py",)
    assert names(found.changed) == ["gone"]


def test_a_file_that_still_imports_what_is_gone_is_broken_as_a_whole():
    tree = {**TREE, "pkg/ops/gla/chunk.py": "from pkg.device import probe\ndef chunk_gla(x): 1\n"}
    found = ask({"pkg/device.py": "DEVICE = 1\nNAME = 'x'\n"}, tree=tree)
    assert "tests/ops/test_gla.py" in found.tests
    assert ("pkg/ops/gla/chunk.py", "imports") in [entry[:2] for entry in found.widened]


def test_a_deleted_module_breaks_its_importers():
    found = ask({"pkg/ops/kda/naive.py": None})
    assert set(KDA_TESTS) <= set(found.tests)
    assert any("is gone" in entry.reason for entry in found.widened)


def test_a_moved_module_selects_its_users_only():
    found = ask(
        {
            "pkg/ops/kda/naive.py": None,
            "pkg/ops/kda/reference.py": TREE["pkg/ops/kda/naive.py"],
            **edit("pkg/ops/kda/__init__.py", ".naive", ".reference"),
        }
    )
    assert found.tests == ("tests/ops/test_kda.py",)


def test_a_changed_init_widens_to_the_tests_that_import_its_package():
    found = ask(edit("pkg/ops/kda/__init__.py", "from .chunk", "VERSION = 2\n        from .chunk"))
    assert found.tests == ("tests/ops/test_kda.py",)
    assert [entry[:2] for entry in found.widened] == [("pkg/ops/kda/__init__.py", "package")]


@pytest.mark.parametrize(
    "statement", ["os.environ['X'] = '1'\n", "warnings.simplefilter('error')\n", "assert ready()\n"]
)
def test_module_code_of_unknown_effect_widens_to_importers(statement):
    found = ask({"pkg/ops/gla/chunk.py": TREE["pkg/ops/gla/chunk.py"] + statement})
    assert set(found.tests) >= {"tests/ops/test_gla.py", "tests/ops/test_kda.py"}
    assert [entry.scope for entry in found.widened] == ["imports"]


def test_reordered_module_code_widens():
    tree = {**TREE, "pkg/ops/gla/chunk.py": "a = 1\nb = a\ndef chunk_gla(x): return x\n"}
    found = ask({"pkg/ops/gla/chunk.py": "b = a\na = 1\ndef chunk_gla(x): return x\n"}, tree=tree)
    assert "tests/ops/test_gla.py" in found.tests
    assert found.widened[0].reason == "module-level statements are reordered"


def test_a_syntax_error_widens():
    found = ask({"pkg/ops/gla/chunk.py": "def chunk_gla(:\n"})
    assert "tests/ops/test_gla.py" in found.tests
    assert "cannot be parsed" in found.widened[0].reason


def test_a_file_that_cannot_be_parsed_may_use_anything():
    tree = {**TREE, "tests/test_x.py": "def test_x(:\n"}
    found = ask(edit("pkg/device.py", "'x'", "'y'"), tree=tree)
    assert found.tests == ("tests/test_device.py", "tests/test_x.py")
    assert found.widened[0].path == "tests/test_x.py"


def test_a_change_that_reaches_no_test_widens_step_by_step():
    found = ask(edit("pkg/ops/kda/chunk.py", "def unused(): return 1", "def unused(): return 2"))
    assert found.tests == KDA_TESTS
    assert [entry.scope for entry in found.widened] == ["file"]
    assert found.unreached == ("pkg/ops/kda/chunk.py",)


def test_a_file_that_nobody_uses_selects_everything():
    found = ask({"pkg/orphan.py": "def f(): ...\n"})
    assert found.tests == ALL_TESTS
    assert [entry.scope for entry in found.widened] == ["imports", "all"]


def test_what_no_test_reaches_is_said_even_if_the_change_reaches_others():
    found = ask(
        {
            **edit("pkg/ops/gla/chunk.py", "chunk_gla(x): return x", "chunk_gla(x): return 1"),
            **edit("pkg/ops/kda/chunk.py", "unused(): return 1", "unused(): return 2"),
        }
    )
    assert found.tests == ("tests/ops/test_gla.py",)
    assert found.unreached == ("pkg/ops/kda/chunk.py",)


def test_other_files_select_who_names_them_all_or_nothing():
    assert ask({}, also_changed=("docs/x.md",)) == Impact()
    assert ask({}, also_changed=("pkg/data.bin",)).tests == ALL_TESTS
    tree = {**TREE, "tests/test_x.py": "def test_x(): open('pkg/cases.json')\n"}
    found = ask({}, tree=tree, also_changed=("pkg/cases.json",))
    assert found.tests == ("tests/test_x.py",)
    assert not found.widened


def test_a_deleted_module_with_exports_is_followed_from_the_tree_before():
    gone = {"pkg/gone.py": '__all__ = ["old"]\n\n\ndef old():\n    return 1\n'}
    user = {"tests/test_gone.py": "from pkg.gone import old\n\n\ndef test_old():\n    old()\n"}
    found = ask({"pkg/gone.py": None}, tree={**TREE, **gone, **user})
    assert "tests/test_gone.py" in found.tests


def test_what_a_test_file_runs_besides_its_tests_selects_it():
    module = "def helper():\n    return 1\n"
    uses = {
        "a": "def setup_module():\n    helper()\n",
        "b": "helper()\n",
        "c": "class Suite(TestCase):\n    def test_it(self):\n        helper()\n",
    }
    head = "from unittest import TestCase\nfrom pkg.gone import helper\n\n\n"
    tail = "\n\ndef test_other():\n    pass\n"
    files = {f"tests/test_{name}.py": head + text + tail for name, text in uses.items()}
    tree = {**TREE, **files, "pkg/gone.py": module}
    found = ask({"pkg/gone.py": module.replace("1", "2")}, tree=tree)
    assert set(found.tests) == set(files)


def test_a_global_that_a_function_sets_reaches_who_reads_it():
    module = "FLAG = 0\n\n\ndef turn():\n    global FLAG\n    FLAG = 1\n"
    module += "\n\ndef use():\n    return FLAG\n"
    test = "from pkg.flag import use\n\n\ndef test_use():\n    use()\n"
    tree = {**TREE, "pkg/flag.py": module, "tests/test_flag.py": test}
    found = ask({"pkg/flag.py": module.replace("FLAG = 1", "FLAG = 2")}, tree=tree)
    assert found.tests == ("tests/test_flag.py",)


def test_a_class_body_that_rebinds_a_name_uses_the_one_of_the_module():
    module = "def a(x):\n    return x\n\n\nclass Ops:\n    a = staticmethod(a)\n"
    test = "from pkg.klass import Ops\n\n\ndef test_ops():\n    Ops.a(1)\n"
    tree = {**TREE, "pkg/klass.py": module, "tests/test_klass.py": test}
    found = ask({"pkg/klass.py": module.replace("return x", "return -x")}, tree=tree)
    assert "tests/test_klass.py" in found.tests


def test_reordered_imports_of_a_package_widen():
    base = {**TREE, "pkg/__init__.py": "from pkg import ops\nfrom pkg import layers\n"}
    found = ask({"pkg/__init__.py": "from pkg import layers\nfrom pkg import ops\n"}, tree=base)
    assert "imports are reordered" in {item.reason for item in found.widened}
    assert found.tests


def test_a_script_that_a_test_runs_by_its_path_reaches_the_test():
    files = {
        "scripts/smoke.py": "def main():\n    return 0\n",
        "tests/test_smoke.py": "def test_run():\n    run(['python', 'scripts/smoke.py'])\n",
    }
    found = ask({"scripts/smoke.py": "def main():\n    return 1\n"}, tree={**TREE, **files})
    assert found.tests == ("tests/test_smoke.py",)


def test_a_file_at_the_top_concerns_everything_even_if_a_test_names_it():
    files = {"tests/test_pack.py": 'def test_pack():\n    open("pyproject.toml")\n'}
    found = ask({}, tree={**TREE, **files}, also_changed=("pyproject.toml",))
    assert set(found.tests) == {*ALL_TESTS, "tests/test_pack.py"}


def test_code_that_a_module_runs_when_imported_reaches_its_importers():
    files = {
        "pkg/patch.py": "import torch\n\n\ndef fast(x):\n    return x\n\n\ntorch.compile = fast\n",
        "pkg/run.py": "def _init():\n    global FLAG\n    FLAG = 1\n\n\n_init()\n",
        "tests/test_patch.py": "import pkg.patch\n\n\ndef test_a(): ...\n",
        "tests/test_init.py": "from pkg import run\n\n\ndef test_b(): ...\n",
    }
    tree = {**TREE, **files}
    edits = {"pkg/patch.py": files["pkg/patch.py"].replace("return x", "return -x")}
    assert "tests/test_patch.py" in ask(edits, tree=tree).tests
    edits = {"pkg/run.py": files["pkg/run.py"].replace("FLAG = 1", "FLAG = 2")}
    assert "tests/test_init.py" in ask(edits, tree=tree).tests


def test_an_inert_python_file_selects_nothing():
    found = ask({"scripts/run.py": "def main(): ...\n"})
    assert found.tests == ()
    assert found.unreached == ("scripts/run.py",)


def test_relative_imports_and_folders_that_are_no_package():
    tree = {
        "src/lib/__init__.py": "from .core import run\n",
        "src/lib/core.py": "from . import low\ndef run(): return low.step()\n",
        "src/lib/low.py": "def step(): return 1\n",
        "tests/shared.py": "from lib import run\ndef check(): run()\n",
        "tests/test_run.py": "from shared import check\ndef test_run(): check()\n",
        "tests/test_other.py": "def test_other(): ...\n",
    }
    found = ask({"src/lib/low.py": "def step(): return 2\n"}, tree=tree)
    assert found.tests == ("tests/test_run.py",)


def test_import_cycles_end():
    tree = {
        "a.py": "from b import *\nimport b as m\ndef f(): m.g()\n",
        "b.py": "from a import *\nimport a as n\ndef g(): n.f()\n",
        "tests/test_a.py": "from b import f\ndef test_a(): f()\n",
    }
    found = ask({"a.py": tree["a.py"].replace("m.g()", "m.g")}, tree=tree)
    assert found.tests == ("tests/test_a.py",)


def test_a_template_with_many_stars_is_matched_in_linear_time():
    stars = ".".join(["{x}"] * 60)
    tree = {**TREE, "pkg/hostile.py": f"def f(x): load(f'pkg.{stars}.z')\n"}
    assert ask({"pkg/orphan.py": "x = 1\n"}, tree=tree).tests == ALL_TESTS


def test_nothing_changed_selects_nothing():
    assert ask({}) == Impact()
