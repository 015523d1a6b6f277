"""SGLang is as the plugin and the verdicts on it take it to be: read in its wheel, without importing it."""

from __future__ import annotations

import ast
import importlib.metadata
import re
from pathlib import Path

import pytest

import warmshelf.sglang
from kit.sglang_engine import REGISTRY, ROOT, source, tree, wheel
from warmshelfd.domain.engines import ENGINES

RELIED_ON = {name: wanted for hook in warmshelf.sglang.HOOKS for name, wanted in hook.relies_on.items()}
LORA_FILES = sorted(name for name in wheel().namelist() if re.fullmatch(r"sglang/srt/lora/\w+\.py", name))


def function(dotted: str) -> ast.FunctionDef | ast.AsyncFunctionDef:
    module, kind, name = dotted.rsplit(".", 2)
    (owner,) = (node for node in tree(module).body if isinstance(node, ast.ClassDef) and node.name == kind)
    (found,) = (
        node for node in owner.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name
    )
    return found


def parameters(dotted: str) -> tuple[str, ...]:
    given = function(dotted).args
    return tuple(one.arg for one in (*given.args[1:], *given.kwonlyargs))


def test_the_wheel_is_the_version_that_the_verdicts_name() -> None:
    (metadata,) = (name for name in wheel().namelist() if name.endswith(".dist-info/METADATA"))
    version = re.search(r"^Version: (.*)$", wheel().read(metadata).decode(), re.MULTILINE)
    assert version is not None
    assert {engine.name: engine.version for engine in ENGINES}["sglang"] == version[1]


@pytest.mark.parametrize("dotted", RELIED_ON)
def test_a_method_that_is_hooked_or_called_has_the_parameters_that_are_relied_on(dotted: str) -> None:
    assert parameters(dotted) == RELIED_ON[dotted]


def test_names_are_looked_up_by_a_coroutine_and_adapters_read_by_a_function() -> None:
    targets = {hook.target.rpartition(".")[2]: function(hook.target) for hook in warmshelf.sglang.HOOKS}
    assert {name: type(node) for name, node in targets.items()} == {
        "_load_lora_adapter": ast.FunctionDef,
        "_resolve_lora_path": ast.AsyncFunctionDef,
        "_get_weights_iterator": ast.FunctionDef,
    }


def test_plugins_are_found_by_the_group_that_ours_is_in_and_called_with_nothing() -> None:
    (group,) = re.findall(r'^GENERAL_PLUGINS_GROUP = "(.*)"$', source("sglang.srt.plugins"), re.MULTILINE)
    text = (ROOT / "pyproject.toml").read_text()
    assert f'[project.entry-points."{group}"]\nwarmshelf = "warmshelf.sglang:register"\n' in text
    assert "\n            func()\n" in source("sglang.srt.plugins")


def test_a_hook_around_a_method_is_called_with_the_method_and_its_arguments() -> None:
    assert parameters(f"{REGISTRY}.HookRegistry.register") == ("target", "hook", "hook_type", "source")
    assert "return hook(original_fn, *args, **kwargs)" in source(REGISTRY)


def test_an_engine_takes_tensors_and_a_config() -> None:
    wanted = ("lora_name", "tensors", "config_dict", "load_format")
    assert parameters("sglang.srt.entrypoints.engine.Engine.load_lora_adapter_from_tensors") == wanted


def test_a_server_keeps_what_it_knows_of_adapters_where_the_plugin_looks() -> None:
    text = source("sglang.srt.managers.tokenizer_manager")
    for piece in ("self.server_args = server_args", "self.lora_registry", "self.lora_ref_cache[lora_path]"):
        assert piece in text
    fields = re.search(r"class LoRARef\(.*?(?=def )", source("sglang.srt.lora.lora_registry"), re.DOTALL)
    assert fields is not None
    assert re.findall(r"^    (\w+): ", fields[0], re.MULTILINE) == ["lora_id", "lora_name", "lora_path", "pinned"]
    assert 'lora_path="__tensor__"' in source("sglang.srt.managers.tokenizer_control_mixin")


def test_a_checkpoints_source_says_its_directory_and_prefix() -> None:
    text = source("sglang.srt.model_loader.loader")
    fields = re.search(r"    class Source:\n.*?(?=@classmethod)", text, re.DOTALL)
    assert fields is not None
    assert {"model_or_path", "prefix"} <= {*re.findall(r"^        (\w+): ", fields[0], re.MULTILINE)}
    assert "loaded = " not in ast.unparse(
        function("sglang.srt.model_loader.loader.DefaultModelLoader.load_weights_only")
    ), "SGLang says now which parameters it has loaded: the plugin can refuse a base that lacks some"


# --- what the verdicts rest on ---------------------------------------------------


def test_adapters_are_scaled_by_alpha_over_rank_alone() -> None:
    assert "self.scaling: float = self.config.lora_alpha / self.config.r" in source("sglang.srt.lora.lora")
    read = set(re.findall(r'hf_config(?:\.get\(|\[)"(\w+)"', "".join(wheel().read(f).decode() for f in LORA_FILES)))
    assert read == {"peft_type", "target_modules", "r", "lora_alpha", "use_dora"}


def test_dora_and_added_tokens_are_refused() -> None:
    text = ast.unparse(function("sglang.srt.lora.lora_manager.LoRAManager.validate_new_adapter"))
    assert re.search(r"if lora_config\.use_dora:\s+raise ValueError", text)
    assert re.search(r"if lora_config\.lora_added_tokens_size > 0:\s+raise ValueError", text)


def test_query_key_and_value_are_stacked_and_what_is_no_a_is_taken_for_b() -> None:
    text = ast.unparse(function("sglang.srt.lora.lora.LoRAAdapter.normalize_qkv_proj"))
    assert "weights[k_name] if 'k_proj' in target_module else torch.zeros_like(weights[v_name])" in text
    pool = ast.unparse(function("sglang.srt.lora.mem_pool.LoRAMemoryPool.load_lora_weight_to_buffer"))
    assert re.search(
        r"if 'lora_A' in name:\s+temp_A_buffer\[target_module\] = weights\s+.*\s+else:\s+temp_B_buffer", pool
    )


def test_modules_are_found_by_layer_and_name_whatever_stands_before() -> None:
    text = ast.unparse(tree("sglang.srt.layers.utils.common"))
    assert "re.search('layers\\\\.(\\\\d+)\\\\.', weight_name)" in text
    assert "if target_module in full_module_name" in ast.unparse(tree("sglang.srt.lora.utils"))


def test_nothing_of_sglang_is_installed_here() -> None:
    with pytest.raises(importlib.metadata.PackageNotFoundError):
        importlib.metadata.version("sglang")
    assert Path(str(wheel().filename)).is_relative_to(ROOT / "build")
