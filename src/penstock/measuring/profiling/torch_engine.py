"""A random Llama of Hugging Face's, run batch by batch by PyTorch: on CUDA, or else a CPU.

The tokens of a batch, prefill and decode, go through the linear layers together, as in serving
engines. Keys and values lie in tensors made once, a row per running request. Each prompt attends by
itself; decodes attend together, each to its row, up to the longest context among them (rounded up,
so that there are few shapes). Batches of decodes alone can run as CUDA graphs, which spare the
launch of each kernel. A policy of Penstock's forms the batches.
"""

from pathlib import Path
from typing import Any

import numpy as np

from penstock import checks
from penstock.errors import InputError
from penstock.measuring.profiling.batching import Batch, Batching
from penstock.measuring.profiling.engine import RealEngine, imported
from penstock.measuring.profiling.llama import LlamaShape
from penstock.system.scheduler import Scheduler

_PACKAGES = ("torch", "transformers")
_ROUND = 256  # decodes attend to a multiple of so many tokens
_SPARE = 0.9  # share of the free memory that weights, keys and values may take


class TorchEngine(RealEngine):
    """A random Llama on PyTorch, whose batches a policy forms.

    Parameters
    ----------
    shape
        The Llama.
    token_budget
        Most tokens in a batch.
    policy
        A policy of the paper, by name.
    max_running
        Most requests that are admitted and unfinished: rows of the KV cache.
    longest
        Most tokens of a request, prompt and output together.
    device
        ``cuda``, ``cpu``, or ``auto``: the former where there is one. bf16 on CUDA, fp32 on a CPU.
    threads
        Threads of a forward pass on a CPU.
    cuda_graphs
        Whether batches of decodes alone run as CUDA graphs.

    Raises
    ------
    InputError
        If PyTorch or transformers is missing, there is no such device, or its memory is too small.
    """

    def __init__(
        self,
        shape: LlamaShape,
        token_budget: int,
        policy: str | Scheduler = "sarathi",
        max_running: int = 64,
        longest: int = 2048,
        device: str = "auto",
        threads: int = 1,
        cuda_graphs: bool = True,
    ) -> None:
        torch, _ = imported("the engine torch needs PyTorch and transformers", "torch", *_PACKAGES)
        reason = "each has a row of the KV cache"
        self.max_running: int = checks.whole(
            "max_running", max_running, 1, 65_536, "requests", reason
        )
        super().__init__(Batching(policy, token_budget, max_running))
        threads = checks.whole("threads", threads, 1, 4096, "", "a forward pass needs at least one")
        self._device = _device(torch, device)
        cuda = self._device.type == "cuda"
        if not cuda:
            torch.set_num_threads(threads)
        checks.whole("longest", longest, 2, 2**20, "tokens", "a request has two")
        self.longest = _rounded(longest)
        kind = torch.bfloat16 if cuda else torch.float32
        _check_memory(torch, self._device, shape, (max_running + 1) * self.longest, kind.itemsize)
        self._llama = _Llama(torch, shape, self._device, kind, max_running + 1, self.longest)
        self._torch = torch
        self._graphs: dict[tuple[int, int], tuple[Any, ...]] = {}
        if cuda and cuda_graphs:
            self._capture_all()
        self._rows: dict[int, int] = {}
        # Lowest row first; the last of the cache is nobody's.
        self._free = list(range(max_running))[::-1]
        self._last: dict[int, int] = {}  # the newest token of each request in decode
        self._ids = np.random.default_rng(0).integers(4, shape.vocab, self.longest)
        if not cuda:
            self._describe(shape, "PyTorch fp32", _PACKAGES, threads)
            return
        name = torch.cuda.get_device_name(self._device)
        self._describe(shape, "PyTorch bf16", _PACKAGES, threads, name)
        self.facts["cuda"] = str(torch.version.cuda)
        if self._graphs:
            self.description += ", CUDA graphs"

    def submit(self, request: int, prompt: int, output: int) -> None:
        """Put a request of random tokens at the end of the queue."""
        if prompt + output > self.longest:
            raise InputError(
                f"a request of {prompt + output:,} tokens does not fit a row of the KV cache, "
                f"{self.longest:,} tokens; raise longest, or give lengths a max"
            )
        self._batching.add(request, prompt, output)

    def step(self) -> Batch:
        """Run one batch to its end, and read its tokens."""
        batch = self._batching.next_batch()
        for request, _, before in batch.prefill:
            if not before:
                self._rows[request] = self._free.pop()
        tokens = self._run(batch)
        emitted = dict(
            zip([r for r, *_ in batch.prefill] + [r for r, _ in batch.decode], tokens, strict=True)
        )
        for request in batch.puts_out:
            self._last[request] = emitted[request]
        for request in self._batching.left:
            self._free.append(self._rows.pop(request))
            self._last.pop(request)
        self._free.sort(reverse=True)
        return batch

    def _run(self, batch: Batch) -> list[int]:
        """Return the next token of each request in the batch, prompts first."""
        torch = self._torch
        with torch.inference_mode():
            if not batch.prefill and self._graphs:
                return self._replay(batch)
            ids = [
                token
                for _, new, before in batch.prefill
                for token in self._ids[before : before + new].tolist()
            ]
            ids += [self._last[request] for request, _ in batch.decode]
            places = [
                index for _, new, before in batch.prefill for index in range(before, before + new)
            ]
            places += [before for _, before in batch.decode]
            chunks = [(self._rows[request], new, before) for request, new, before in batch.prefill]
            decode = self._decodes(batch) if batch.decode else None
            on = self._device
            logits = self._llama(
                torch.tensor(ids, device=on), torch.tensor(places, device=on), chunks, decode
            )
            tokens: list[int] = logits.argmax(-1).tolist()  # waits for the device
            return tokens

    def _decodes(self, batch: Batch) -> tuple[Any, Any, int, int]:
        """Return rows, tokens before, rows in use, and the context to attend to, of the decodes."""
        torch = self._torch
        rows = [self._rows[request] for request, _ in batch.decode]
        before = [tokens for _, tokens in batch.decode]
        on = self._device
        return (
            torch.tensor(rows, device=on),
            torch.tensor(before, device=on),
            max(rows) + 1,
            self._context(before),
        )

    def _context(self, before: list[int]) -> int:
        """Return the context to attend to, for decodes after so many tokens."""
        return min(_rounded(max(before) + 1), self.longest)

    def _replay(self, batch: Batch) -> list[int]:
        """Run decodes as a CUDA graph for a power of two; missing ones decode in nobody's row."""
        torch, count = self._torch, len(batch.decode)
        size = 1 << (count - 1).bit_length()
        before = [tokens for _, tokens in batch.decode]
        graph, ids, rows, places, tokens = self._graphs[size, self._context(before)]
        fill, nobody = size - count, self.max_running
        ids.copy_(torch.tensor([self._last[r] for r, _ in batch.decode] + [0] * fill))
        rows.copy_(torch.tensor([self._rows[r] for r, _ in batch.decode] + [nobody] * fill))
        places.copy_(torch.tensor(before + [0] * fill))
        graph.replay()
        emitted: list[int] = tokens[:count].tolist()
        return emitted

    def _capture_all(self) -> None:
        """Capture a graph for each power of two of decodes and each context before clocks run."""
        # One at a time is run, so all may use the same memory.
        pool = self._torch.cuda.graph_pool_handle()
        with self._torch.inference_mode():
            for bits in range((self.max_running - 1).bit_length() + 1):
                for context in range(_ROUND, self.longest + 1, _ROUND):
                    self._graphs[1 << bits, context] = self._captured(1 << bits, context, pool)

    def _captured(self, size: int, context: int, pool: Any) -> tuple[Any, ...]:
        """Capture the graph of so many decodes up to so long a context."""
        torch = self._torch
        ids, rows, places = (
            torch.zeros(size, dtype=torch.long, device=self._device) for _ in range(3)
        )
        rows.fill_(self.max_running)

        def forward() -> Any:
            return self._llama(ids, places, [], (rows, places, None, context)).argmax(-1)

        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # libraries set themselves up outside of a capture
            for _ in range(3):
                forward()
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            tokens = forward()
        return graph, ids, rows, places, tokens


class _Llama:
    """The forward pass, over the modules of `transformers.LlamaForCausalLM`."""

    def __init__(
        self, torch: Any, shape: LlamaShape, device: Any, kind: Any, rows: int, longest: int
    ) -> None:
        from transformers import LlamaConfig, LlamaForCausalLM
        from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

        self.torch, self.shape, self.rotate = torch, shape, apply_rotary_pos_emb
        config = LlamaConfig(**shape.config() | {"max_position_embeddings": longest})
        torch.manual_seed(0)
        usual = torch.get_default_dtype()
        torch.set_default_dtype(kind)
        try:
            with device:
                self.model = LlamaForCausalLM(config).eval()
        finally:
            torch.set_default_dtype(usual)
        size = (shape.layers, rows, shape.kv_heads, longest, shape.head_size)
        self.keys = torch.zeros(size, dtype=kind, device=device)
        self.values = torch.zeros(size, dtype=kind, device=device)

    def __call__(
        self, ids: Any, places: Any, chunks: list[tuple[int, int, int]], decode: Any
    ) -> Any:
        """Return the logits of the last token of each chunk, then of each decode.

        Parameters
        ----------
        ids, places
            Shape (tokens,): tokens, and where in its request each stands; chunks first, then
            decodes.
        chunks
            (row, new tokens, tokens before) of each prompt.
        decode
            Rows and tokens before, shape (decodes,), the rows in use or None for those of the
            decodes alone, and the context to attend to; None without decodes.
        """
        model, shape = self.model.model, self.shape
        x = model.embed_tokens(ids)
        cos, sin = model.rotary_emb(x[None], places[None])
        for layer, module in enumerate(model.layers):
            attention = module.self_attn
            normed = module.input_layernorm(x)
            q, k, v = (
                project(normed).view(1, ids.shape[0], heads, shape.head_size).transpose(1, 2)
                for project, heads in (
                    (attention.q_proj, shape.heads),
                    (attention.k_proj, shape.kv_heads),
                    (attention.v_proj, shape.kv_heads),
                )
            )  # fmt: skip
            q, k = self.rotate(q, k, cos, sin)
            mixed = self._attend(layer, q[0], k[0], v[0], chunks, decode)
            x = x + attention.o_proj(mixed)
            x = x + module.mlp(module.post_attention_layernorm(x))
        if chunks:  # only the last token of a chunk is asked what comes next
            ends = np.cumsum([new for _, new, _ in chunks])
            last = [*(ends - 1).tolist(), *range(int(ends[-1]), ids.shape[0])]
            x = x[self.torch.tensor(last, device=x.device)]
        return self.model.lm_head(model.norm(x))

    def _attend(
        self, layer: int, q: Any, k: Any, v: Any, chunks: list[tuple[int, int, int]], decode: Any
    ) -> Any:
        """Keep keys and values; return what attention finds, shape (tokens, heads x head size)."""
        torch, shape = self.torch, self.shape
        keys, values = self.keys[layer], self.values[layer]
        outs, at = [], 0
        for row, new, before in chunks:
            keys[row, :, before : before + new] = k[:, at : at + new]
            values[row, :, before : before + new] = v[:, at : at + new]
            end = before + new
            visible = (
                torch.ones(new, end, dtype=torch.bool, device=q.device).tril(before)
                if before
                else None
            )
            shared = shape.heads // shape.kv_heads
            out = torch.nn.functional.scaled_dot_product_attention(
                q[None, :, at : at + new],
                keys[row, :, :end].repeat_interleave(shared, 0)[None],
                values[row, :, :end].repeat_interleave(shared, 0)[None],
                attn_mask=visible,
                is_causal=not before,
            )
            outs.append(out[0].transpose(0, 1).reshape(new, -1))
            at += new
        if decode is not None:
            outs.append(self._attend_decodes(keys, values, q[:, at:], k[:, at:], v[:, at:], decode))
        return torch.cat(outs) if len(outs) > 1 else outs[0]

    def _attend_decodes(self, keys: Any, values: Any, q: Any, k: Any, v: Any, decode: Any) -> Any:
        """Attend from one token of each row to all before it."""
        torch, shape = self.torch, self.shape
        rows, before, used, context = decode
        keys[rows, :, before] = k.transpose(0, 1)
        values[rows, :, before] = v.transpose(0, 1)
        count = rows.shape[0]
        grouped = q.transpose(0, 1).reshape(count, shape.kv_heads, -1, shape.head_size)
        hidden = torch.arange(context, device=q.device)[None, :] > before[:, None]
        # A view of all rows in use reads less than a copy of those wanted, if most of them are.
        whole = used is not None and used <= 2 * count
        if whole:
            spread = grouped.new_zeros(used, *grouped.shape[1:])
            spread[rows] = grouped
            mask = torch.zeros(used, context, dtype=torch.bool, device=q.device)
            mask[rows] = hidden
            grouped, hidden = spread, mask
            near, far = keys[:used, :, :context], values[:used, :, :context]
        else:
            near, far = keys[rows, :, :context], values[rows, :, :context]
        scores = torch.matmul(grouped, near.transpose(-1, -2)) * shape.head_size**-0.5
        weights = (
            scores.masked_fill(hidden[:, None, None], float("-inf"))
            .float()
            .softmax(-1)
            .to(scores.dtype)
        )
        out = torch.matmul(weights, far)
        return (out[rows] if whole else out).reshape(count, -1)


def _rounded(tokens: int) -> int:
    return -(-tokens // _ROUND) * _ROUND


def _device(torch: Any, wanted: str) -> Any:
    """Return the device to compute on."""
    there = torch.cuda.is_available()
    if wanted not in ("auto", "cuda", "cpu"):
        raise InputError(f"device is {checks.shown(wanted)}; give auto, cuda or cpu")
    if wanted == "cuda" and not there:
        raise InputError(
            "device is 'cuda', but PyTorch finds no GPU here; give cpu, or install a PyTorch for "
            "CUDA"
        )
    return torch.device("cuda" if there and wanted != "cpu" else "cpu")


def _check_memory(torch: Any, device: Any, shape: LlamaShape, tokens: int, size: int) -> None:
    """Refuse what does not fit before it is allocated."""
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else _free_memory()
    weights = shape.parameters * size
    cache = tokens * shape.kv_values * size
    if weights + cache > _SPARE * free:
        raise InputError(
            f"weights of {weights / 1e9:.1f} GB and a KV cache of {cache / 1e9:.1f} GB do not fit "
            f"into {_SPARE:.0%} of the {free / 1e9:.1f} GB that are free; lower max_running or "
            "longest, or take a smaller model"
        )


def _free_memory() -> float:
    """Return the bytes of memory that are free here; endless where that is not known."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return (
            float(next(line.split()[1] for line in lines if line.startswith("MemAvailable"))) * 1024
        )
    except (OSError, StopIteration):
        return float("inf")
