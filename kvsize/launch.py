"""The launch command that realises a plan, and the files that put the check before a rollout."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping

from kvsize.errors import UnsupportedError
from kvsize.fit import Case, Outcome

Words = list[str]


def script(target: str, model: str, outcome: Outcome) -> str:
    """The text that --emit prints, ending in a newline.

    Raises:
        UnsupportedError: the plan was made for another engine than the command is for.
    """
    case = outcome.case
    if target in COMMANDS:
        if case.engine != target:
            raise UnsupportedError(
                f"this plan is for {case.engine}; a {target} command would start something else",
                hint=f"Plan with --engine {target}.",
            )
        return wrapped(COMMANDS[target](model, case))
    return DOCUMENTS[target](model, case)


def vllm(model: str, case: Case) -> Words:
    """`vllm serve` with every setting of the plan."""
    words = ["vllm", "serve", model, "--max-model-len", str(case.workload.tokens)]
    words += ["--max-num-seqs", str(case.launch.max_num_seqs or max(case.workload.sequences, 1))]
    words += _layout(case, "--tensor-parallel-size", "--pipeline-parallel-size", "--data-parallel-size")
    words += _format(case, "--kv-cache-dtype")
    words += _given(
        {
            "--gpu-memory-utilization": case.launch.gpu_memory_utilization,
            "--max-num-batched-tokens": case.launch.max_num_batched_tokens,
            "--decode-context-parallel-size": _beyond_one(case, "decode_context_parallel_size"),
            "--block-size": getattr(case.options, "block_size", None),
        }
    )
    words += _switch(case, "enable_prefix_caching", "--enable-prefix-caching")
    if getattr(case.options, "disable_hybrid_kv_cache_manager", False):
        words.append("--disable-hybrid-kv-cache-manager")
    return [*words, "--enforce-eager"] if case.launch.enforce_eager else words


def sglang(model: str, case: Case) -> Words:
    """`python -m sglang.launch_server` with every setting of the plan."""
    words = ["python", "-m", "sglang.launch_server", "--model-path", model]
    words += ["--context-length", str(case.workload.tokens), "--max-running-requests", str(case.workload.sequences)]
    words += _layout(case, "--tp-size", "--pp-size", "--dp-size")
    words += _format(case, "--kv-cache-dtype")
    return words + _given(
        {
            "--mem-fraction-static": case.launch.mem_fraction_static,
            "--page-size": getattr(case.options, "page_size", None),
            "--swa-full-tokens-ratio": getattr(case.options, "swa_full_tokens_ratio", None),
        }
    )


def llamacpp(model: str, case: Case) -> Words:
    """`llama-server`: its context is shared by the sequences, so it is asked for all of them."""
    total = case.workload.tokens * case.workload.sequences
    source = ["--model", model] if model.endswith(".gguf") else ["--hf-repo", model]
    words = ["llama-server", *source, "--ctx-size", str(total), "--parallel", str(case.workload.sequences)]
    for flag, name in (("--cache-type-k", case.workload.k_format), ("--cache-type-v", case.workload.v_format)):
        if name != "auto":
            words += [flag, name]
    return [*words, "--n-gpu-layers", str(getattr(case.options, "n_gpu_layers", None) or 999)]


def trtllm(model: str, case: Case) -> Words:
    """`trtllm-serve` with the plan's limits."""
    words = ["trtllm-serve", model, "--max_seq_len", str(case.workload.tokens)]
    words += ["--max_batch_size", str(case.workload.sequences)]
    return words + _layout(case, "--tp_size", "--pp_size", "--dp_size")


COMMANDS: Mapping[str, Callable[[str, Case], Words]] = {
    "vllm": vllm,
    "sglang": sglang,
    "llama.cpp": llamacpp,
    "trtllm": trtllm,
}


def check(model: str, case: Case) -> Words:
    """The `kvsize fit` command that asks this very question again."""
    words = ["kvsize", "fit", model, "--gpu", f"{case.gpus.count}x{case.gpus.gpu.key}", "--engine", case.engine]
    words += ["--ctx", str(case.workload.tokens), "--batch", str(case.workload.sequences)]
    words += _format(case, "--kv-dtype")
    layout = {"--tp": case.layout.tensor, "--pp": case.layout.pipeline, "--dp": case.layout.data}
    for flag, ranks in layout.items():
        words += [flag, str(ranks)] if ranks > 1 else []
    return words


def kubernetes(model: str, case: Case) -> str:
    """A pod's resources, and an init container that asks before anything is pulled."""
    return (
        "initContainers:\n"
        "  - name: kvsize\n"
        "    image: python:3.12-slim\n"
        "    command: [sh, -c]\n"
        "    args:\n"
        f"      - {_yaml('pip install --quiet kvsize && ' + shlex.join(check(model, case)))}\n"
        "containers:\n"
        "  - name: server\n"
        "    resources:\n"
        "      limits:\n"
        f"        nvidia.com/gpu: {case.gpus.count}\n"
    )


def github_action(model: str, case: Case) -> str:
    """A step that stops the workflow unless it fits."""
    return f"- name: Does it fit?\n  run: |\n    pip install --quiet kvsize\n    {shlex.join(check(model, case))}\n"


DOCUMENTS: Mapping[str, Callable[[str, Case], str]] = {"k8s": kubernetes, "github-action": github_action}


def _yaml(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _layout(case: Case, tensor: str, pipeline: str, data: str) -> Words:
    layout = case.layout
    ranks = ((tensor, layout.tensor), (pipeline, layout.pipeline), (data, layout.data))
    return [word for flag, count in ranks if count > 1 for word in (flag, str(count))]


def _format(case: Case, flag: str) -> Words:
    return [] if case.workload.k_format == "auto" else [flag, case.workload.k_format]


def _given(settings: Mapping[str, object]) -> Words:
    return [word for flag, value in settings.items() if value is not None for word in (flag, str(value))]


def _beyond_one(case: Case, field: str) -> int | None:
    value: int | None = getattr(case.options, field, None)
    return value if value and value > 1 else None


def _switch(case: Case, field: str, flag: str) -> Words:
    value = getattr(case.options, field, None)
    return [] if value is None else [flag if value else f"--no-{flag.removeprefix('--')}"]


def wrapped(words: Words) -> str:
    """A shell command, one flag a line."""
    lines, line = [], ""
    for index, word in enumerate(words):
        quoted = shlex.quote(word)
        if word.startswith("--") and index:
            lines.append(line)
            line = f"  {quoted}"
        else:
            line = f"{line} {quoted}" if line else quoted
    return " \\\n".join([*lines, line]) + "\n"
