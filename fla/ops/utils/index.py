# SPDX-License-Identifier: MIT
"""Tables that place fixed-size chunks on packed sequences."""

from __future__ import annotations

import itertools
import weakref
from collections import OrderedDict

import torch

__all__ = ["ChunkTable", "chunk_table", "device_chunk_table"]

# (chunk_indices [chunks, 2], chunk_offsets [N + 1]), both int32 on the device of cu_seqlens.
ChunkTable = tuple[torch.Tensor, torch.Tensor]

_CACHE_SIZE = 32
_cache: OrderedDict[tuple[int, int], tuple[weakref.ref[torch.Tensor], int, ChunkTable]] = (
    OrderedDict()
)


def chunk_table(
    cu_seqlens: torch.Tensor,
    chunk_size: int,
    total: int,
    cu_seqlens_cpu: torch.Tensor | None = None,
) -> ChunkTable:
    """Chunks of all sequences, in order.

    Results are kept by the identity of the tensor and its version, so that a training step that
    passes one object to all layers builds the table once; a change in place builds it anew.
    Building waits for the device, unless cu_seqlens_cpu holds the same numbers on the host.

    Args:
        cu_seqlens (torch.Tensor): `[N + 1]` int32 or int64, starts of the sequences and the end.
        chunk_size (int): tokens a chunk.
        total (int): tokens in the packed batch.
        cu_seqlens_cpu (torch.Tensor): copy of cu_seqlens on the host.

    Returns:
        ChunkTable: see there.

    Raises:
        ValueError: the numbers do not rise from 0 to total.
    """
    version = None if cu_seqlens.is_inference() else cu_seqlens._version
    key = (id(cu_seqlens), chunk_size)
    hit = _cache.get(key)
    if hit is not None and hit[0]() is cu_seqlens and hit[1] == version:
        _cache.move_to_end(key)
        return hit[2]
    bounds = (cu_seqlens if cu_seqlens_cpu is None else cu_seqlens_cpu).tolist()
    if bounds[0] != 0 or bounds[-1] != total or any(a > b for a, b in itertools.pairwise(bounds)):
        raise ValueError(f"cu_seqlens: expected rising numbers from 0 to {total}, got {bounds}")
    counts = torch.tensor([-(-(b - a) // chunk_size) for a, b in itertools.pairwise(bounds)])
    offsets = torch.zeros(len(bounds), dtype=torch.int64)
    offsets[1:] = counts.cumsum(0)
    sequences = torch.repeat_interleave(torch.arange(len(counts)), counts)
    within = torch.arange(len(sequences)) - offsets[sequences]
    table = (
        torch.stack([sequences, within], 1).to(cu_seqlens.device, torch.int32),
        offsets.to(cu_seqlens.device, torch.int32),
    )
    # An inference tensor has no version to tell a change in place by, so it is not kept.
    if version is not None:
        _cache[key] = (weakref.ref(cu_seqlens), version, table)
        while len(_cache) > _CACHE_SIZE:
            _cache.popitem(last=False)
    return table


def device_chunk_table(
    cu_seqlens: torch.Tensor, chunk_size: int, total: int, sequences: int
) -> ChunkTable:
    """The same table built on the device without waiting for it, at its largest possible size.

    Args:
        cu_seqlens (torch.Tensor): `[N + 1]` int32 or int64.
        chunk_size (int): tokens a chunk.
        total (int): tokens in the packed batch.
        sequences (int): bound on the number of sequences, N or more.

    Returns:
        ChunkTable with `total // chunk_size + sequences` rows; those past the last chunk name
        sequence -1.
    """
    counts = (cu_seqlens.diff() + chunk_size - 1) // chunk_size
    offsets = torch.nn.functional.pad(counts.cumsum(0), (1, 0))
    row = torch.arange(total // chunk_size + sequences, device=cu_seqlens.device)
    sequence = torch.searchsorted(offsets[1:].contiguous(), row, right=True)
    known = sequence < counts.shape[0]
    within = row - offsets[sequence.clamp(max=counts.shape[0])]
    indices = torch.stack([torch.where(known, sequence, -1), torch.where(known, within, 0)], 1)
    return indices.to(torch.int32), offsets.to(torch.int32)
