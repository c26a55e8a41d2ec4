"""The launch command that realises a plan, and the files that put the check before a rollout."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields

from kvsize.deployment.judge import Case, Outcome
from kvsize.errors import UnsupportedError

Words = list[str]


def script(target: str, model: str, outcome: Outcome, question: Words) -> str:
    """The text that --emit prints, ending in a newline; `question` are the words that ask kvsize the same again.

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
    return DOCUMENTS[target](question, case)


# engine -> its Options field -> its own flag; what differs from the default is said in the command
SETTINGS: Mapping[str, Mapping[str, str]] = {
    "vllm": {
        "decode_context_parallel_size": "--decode-context-parallel-size",
        "block_size": "--block-size",
        "max_num_batched_tokens": "--max-num-batched-tokens",
        "enable_prefix_caching": "--enable-prefix-caching",
        "async_scheduling": "--async-scheduling",
        "disable_hybrid_kv_cache_manager": "--disable-hybrid-kv-cache-manager",
        "mamba_cache_dtype": "--mamba-cache-dtype",
        "mamba_ssm_cache_dtype": "--mamba-ssm-cache-dtype",
    },
    "sglang": {
        "page_size": "--page-size",
        "swa_full_tokens_ratio": "--swa-full-tokens-ratio",
        "mamba_full_memory_ratio": "--mamba-full-memory-ratio",
        "max_mamba_cache_size": "--max-mamba-cache-size",
        "max_total_tokens": "--max-total-tokens",
        "chunked_prefill_size": "--chunked-prefill-size",
        "disable_radix_cache": "--disable-radix-cache",
        "mamba_radix_cache_strategy": "--mamba-radix-cache-strategy",
        "mamba_ssm_cache_dtype": "--mamba-ssm-dtype",
        "dsa_decode_backend": "--dsa-decode-backend",
    },
    "llama.cpp": {
        "n_batch": "--batch-size",
        "n_ubatch": "--ubatch-size",
        "kv_unified": "--kv-unified",
        "flash_attn": "--flash-attn",
        "cache_type_k": "--cache-type-k",
        "cache_type_v": "--cache-type-v",
        "swa_full": "--swa-full",
        "kv_offload": "--kv-offload",
        "num_speculative_tokens": "--spec-draft-n-max",
    },
    "trtllm": {},
}
# Said another way in each command, or of no matter to it.
ELSEWHERE = {
    *("version", "kv_memory", "device_capability", "max_model_len", "n_ctx", "n_parallel", "n_gpu_layers"),
    *("tensor_parallel_size", "pipeline_parallel_size", "max_running_requests"),
}


def vllm(model: str, case: Case) -> Words:
    """`vllm serve` with every setting of the plan."""
    longest = getattr(case.options, "max_model_len", None) or case.workload.tokens
    words = ["vllm", "serve", model, "--max-model-len", str(longest)]
    words += ["--max-num-seqs", str(case.launch.max_num_seqs or max(case.workload.sequences, 1))]
    words += _layout(case, "--tensor-parallel-size", "--pipeline-parallel-size", "--data-parallel-size")
    if case.layout.expert > 1:
        words.append("--enable-expert-parallel")
    words += _format(case, "--kv-cache-dtype")
    words += _given({"--gpu-memory-utilization": case.launch.gpu_memory_utilization})
    drafted = getattr(case.options, "num_speculative_tokens", 0)
    if drafted:
        plan = {"method": case.options.speculative_method, "num_speculative_tokens": drafted}
        words += ["--speculative-config", json.dumps(plan)]
    words += _settings(case, said=("num_speculative_tokens", "speculative_method"))
    return [*words, "--enforce-eager"] if case.launch.enforce_eager else words


def sglang(model: str, case: Case) -> Words:
    """`python -m sglang.launch_server` with every setting of the plan."""
    running = getattr(case.options, "max_running_requests", None) or case.workload.sequences
    words = ["python", "-m", "sglang.launch_server", "--model-path", model]
    words += ["--context-length", str(getattr(case.options, "max_model_len", None) or case.workload.tokens)]
    words += ["--max-running-requests", str(running), *_layout(case, "--tp-size", "--pp-size", "--dp-size")]
    groups = getattr(case.options, "data_parallel_size", 1)
    if groups > 1:
        words += ["--dp-size", str(groups), "--enable-dp-attention"]
    words += ["--ep-size", str(case.layout.expert)] if case.layout.expert > 1 else []
    words += _format(case, "--kv-cache-dtype")
    words += _given({"--mem-fraction-static": case.launch.mem_fraction_static})
    return words + _settings(case, said=("data_parallel_size",))


def llamacpp(model: str, case: Case) -> Words:
    """`llama-server`: its context is shared by the sequences, so it is asked for all of them."""
    options, work = case.options, case.workload
    total = work.tokens * work.sequences if options.n_ctx is None else options.n_ctx
    parallel = work.sequences if options.n_parallel is None else options.n_parallel
    repo, _, file = model.partition(":")
    source = ["--model", model] if model.endswith(".gguf") else ["--hf-repo", model]
    source = ["--hf-repo", repo, "--hf-file", file] if file and "/" in repo else source
    words = ["llama-server", *source, "--ctx-size", str(total), "--parallel", str(parallel)]
    kinds = (("k", options.cache_type_k, work.k_format), ("v", options.cache_type_v, work.v_format))
    words += [w for name, own, told in kinds if own is None and told != "auto" for w in (f"--cache-type-{name}", told)]
    offloaded = options.n_gpu_layers
    words += ["--n-gpu-layers", str(999 if offloaded is None or offloaded < 0 else offloaded)]
    return words + _settings(case)


def trtllm(model: str, case: Case) -> Words:
    """`trtllm-serve` with the plan's limits."""
    if case.workload.k_format != "auto":
        hint = f"Write `kv_cache_config: {{dtype: {case.workload.k_format}}}` to a file and give it as --config."
        raise UnsupportedError("trtllm-serve has no flag for the cache's format", hint=hint)
    words = ["trtllm-serve", model, "--max_seq_len", str(case.workload.tokens)]
    words += ["--max_batch_size", str(case.workload.sequences)]
    words += _layout(case, "--tp_size", "--pp_size", "--dp_size")
    words += ["--ep_size", str(case.layout.expert)] if case.layout.expert > 1 else []
    words += _given({"--kv_cache_free_gpu_memory_fraction": case.launch.gpu_memory_utilization})
    return words + _settings(case)


COMMANDS: Mapping[str, Callable[[str, Case], Words]] = {
    "vllm": vllm,
    "sglang": sglang,
    "llama.cpp": llamacpp,
    "trtllm": trtllm,
}


def kubernetes(question: Words, case: Case) -> str:
    """A pod's resources, and an init container that asks before anything is pulled."""
    return (
        "initContainers:\n"
        "  - name: kvsize\n"
        "    image: python:3.12-slim\n"
        "    command: [sh, -c]\n"
        "    args:\n"
        f"      - {_yaml('pip install --quiet kvsize && ' + shlex.join(question))}\n"
        "containers:\n"
        "  - name: server\n"
        "    resources:\n"
        "      limits:\n"
        f"        nvidia.com/gpu: {case.gpus.count}\n"
    )


def github_action(question: Words, _case: Case) -> str:
    """A step that stops the workflow unless it fits."""
    return f"- name: Does it fit?\n  run: |\n    pip install --quiet kvsize\n    {shlex.join(question)}\n"


DOCUMENTS: Mapping[str, Callable[[Words, Case], str]] = {"k8s": kubernetes, "github-action": github_action}


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


def _settings(case: Case, said: Sequence[str] = ()) -> Words:
    """The engine's own flags for what differs from its defaults.

    Raises:
        UnsupportedError: the command has no flag for a setting of the plan.
    """
    flags, plain = SETTINGS[case.engine], type(case.options)()
    words: Words = []
    for item in fields(case.options):
        name, value = item.name, getattr(case.options, item.name)
        if name in ELSEWHERE or name in said or value == getattr(plain, name):
            continue
        if name not in flags:
            what = f"no flag of the {case.engine} command is known for --{name.replace('_', '-')}"
            raise UnsupportedError(what, hint="Leave it out, or write the command by hand.")
        if isinstance(value, bool):
            words.append(flags[name] if value else f"--no-{flags[name].removeprefix('--')}")
        else:
            words += [flags[name], str(value)]
    return words


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
