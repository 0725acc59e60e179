"""The row store in plain numpy: slow, short, and the truth that tests hold the native one to, bit for bit."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from elasticdl.job.parameters import InitializerSpec, OptimizerSpec

Floats = NDArray[np.float32]
Ids = NDArray[np.int64]

f32 = np.float32
GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def mix64(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def initial_rows(ids: Ids, dim: int, init: InitializerSpec, seed: int) -> Floats:
    """What rows are born as. One draw of 64 bits serves two components."""
    if init.kind == "constant":
        return np.full((len(ids), dim), init.a, np.float32)
    stream = mix64(mix64(np.array([seed], np.uint64) + GOLDEN) ^ ids.astype(np.uint64))
    bits = mix64(stream[:, None] + np.arange(1, dim // 2 + 2, dtype=np.uint64) * GOLDEN)
    if init.kind == "uniform":
        low, high = f32(init.a), f32(init.b)
        draws = np.stack([bits >> np.uint64(40), (bits >> np.uint64(8)) & np.uint64(0xFFFFFF)], axis=-1)
        values = low + (high - low) * (draws.astype(np.float32) * f32(2.0**-24))
        values = np.where(values < high, values, np.nextafter(high, low))
    else:
        radius = np.sqrt(-2 * np.log(((bits >> np.uint64(32)).astype(float) + 1) * 2.0**-32))
        angle = (bits & np.uint64(0xFFFFFFFF)).astype(float) * (2.0**-31 * np.pi)
        values = init.a + init.b * np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=-1)
    return np.ascontiguousarray(values.reshape(len(ids), 2 * (dim // 2 + 1))[:, :dim], np.float32)


def update(w: Floats, slots: list[Floats], g: Floats, spec: OptimizerSpec, rate: float, step: int) -> None:
    """One optimizer step in place: float32 throughout, in the order of operations of the library named."""
    keras, momentum, eps = spec.flavour == "keras", f32(spec.momentum), f32(spec.epsilon)
    rate /= 1 + (step - 1) * spec.rate_decay
    lr = f32(rate)
    g = -g if spec.maximize else g
    if spec.weight_decay and spec.decoupled:
        w *= f32(1 - rate * spec.weight_decay)
    elif spec.weight_decay:
        g = g + w * f32(spec.weight_decay)
    if spec.kind == "sgd" and not spec.momentum:
        w -= g * lr
    elif spec.kind == "sgd" and keras:
        slots[0][:] = slots[0] * momentum - g * lr
        w += slots[0] * momentum - g * lr if spec.nesterov else slots[0]
    elif spec.kind == "sgd":
        slots[0][:] = slots[0] * momentum + g * f32(1 if step == 1 else 1 - spec.dampening)
        w -= (g + slots[0] * momentum if spec.nesterov else slots[0]) * lr
    elif spec.kind == "adagrad":
        slots[0] += g * g
        w -= g * lr / (np.sqrt(slots[0] + eps) if keras else np.sqrt(slots[0]) + eps)
    elif spec.kind == "rmsprop":
        _rmsprop(w, slots, g, spec, lr)
    elif spec.kind == "ftrl" and rate == 0:
        pass  # it divides by the rate
    elif spec.kind == "ftrl":
        total, power = slots[0] + g * g, f32(spec.power)
        before, after = (np.sqrt(x) if spec.power == 0.5 else x**power for x in (slots[0], total))
        slots[1] += g + w * f32(2 * spec.l2_shrinkage) - (after - before) / lr * w
        slots[0][:] = total
        twice_l2 = f32(2) * (f32(spec.l2) + f32(spec.beta) / (f32(2) * lr))
        w[:] = (np.clip(slots[1], f32(-spec.l1), f32(spec.l1)) - slots[1]) / (after / lr + twice_l2)
    else:
        slots[0] += (g - slots[0]) * f32(1 - spec.beta_1)
        if keras:
            slots[1] += (g * g - slots[1]) * f32(1 - spec.beta_2)
        else:
            slots[1][:] = slots[1] * f32(spec.beta_2) + g * g * f32(1 - spec.beta_2)
        if spec.amsgrad:
            slots[2][:] = np.maximum(slots[2], slots[1])
        second = np.sqrt(slots[-1])
        if keras:
            left_1, left_2 = (f32(1) - f32(float(f32(beta)) ** step) for beta in (spec.beta_1, spec.beta_2))
            w -= slots[0] * (lr * np.sqrt(left_2) / left_1) / (second + eps)
        else:
            alpha, root = f32(rate / (1 - spec.beta_1**step)), f32(np.sqrt(1 - spec.beta_2**step))
            w -= slots[0] * alpha / (second / root + eps)


def _rmsprop(w: Floats, slots: list[Floats], g: Floats, spec: OptimizerSpec, lr: np.float32) -> None:
    """Slots: the mean square, the momentum where there is one, the mean where it is centered."""
    rho, rest, keras = f32(spec.rho), f32(1 - spec.rho), spec.flavour == "keras"
    slots[0][:] = slots[0] * rho + g * g * rest
    square = slots[0]
    if spec.centered:
        slots[-1][:] = slots[-1] * rho + g * rest if keras else slots[-1] + (g - slots[-1]) * rest
        square = np.maximum(square - slots[-1] * slots[-1], f32(0))
    root = np.sqrt(square + f32(spec.epsilon)) if keras else np.sqrt(square) + f32(spec.epsilon)
    if spec.momentum > 0:
        slots[1][:] = slots[1] * f32(spec.momentum) + (g * lr / root if keras else g / root)
        w -= slots[1] if keras else slots[1] * lr
    else:
        w -= g * lr / root


@dataclass
class Oracle:
    """A table as a dict, and its views as copies of that dict."""

    dim: int
    optimizer: OptimizerSpec
    init: InitializerSpec
    seed: int
    admit_after: int = 0
    aging: bool = False
    rows: dict[int, Floats] = field(default_factory=dict)  # in the order of an export
    views: dict[int, dict[int, Floats]] = field(default_factory=dict)
    changed: set[int] = field(default_factory=set)  # since the last mark
    removed: set[int] = field(default_factory=set)
    marks: dict[int, tuple[set[int], set[int]]] = field(default_factory=dict)  # what had changed in those views
    marked: bool = False
    newest: int = 0  # step
    counts: dict[int, tuple[int, int]] = field(default_factory=dict)  # of ids without a row: steps seen, the last one

    @property
    def width(self) -> int:
        return self.dim * (1 + self.optimizer.slots)

    def born(self, ids: Ids) -> Floats:
        starts = np.repeat(np.array(self.optimizer.slot_starts, np.float32), self.dim)
        slots = np.tile(starts, (len(ids), 1))
        ages = np.full((len(ids), int(self.aging)), self.newest, np.uint32).view(np.float32)
        return np.hstack([initial_rows(ids, self.dim, self.init, self.seed), slots, ages])

    def birth(self, ids: Ids) -> None:
        for key, row in zip(ids.tolist(), self.born(ids), strict=True):
            if key not in self.rows:
                self.rows[key] = row.copy()
                self.changed.add(key)

    def pull(self, ids: Ids) -> Floats:
        if not self.admit_after:
            self.birth(ids)
        return self.peek(ids, 0)

    def peek(self, ids: Ids, view: int) -> Floats:
        table = self.views[view] if view else self.rows
        born = self.born(ids)
        found = [table.get(key, born[i])[: self.dim] for i, key in enumerate(ids.tolist())]
        return np.array(found, np.float32).reshape(len(ids), self.dim)

    def admitted(self, ids: Ids, step: int) -> list[int]:
        """Those that get a row now: absent ids which this step is the n-th to push."""
        absent = [key for key in dict.fromkeys(ids.tolist()) if key not in self.rows]
        if self.admit_after < 2:
            return absent
        for key in absent:
            seen, last = self.counts.get(key, (0, 0))
            self.counts[key] = (seen + (last != step), step)
        enough = [key for key in absent if self.counts[key][0] == self.admit_after]
        for key in enough:
            del self.counts[key]
        return enough

    def push(self, ids: Ids, grads: Floats, rate: float, step: int) -> int:
        self.newest = max(self.newest, step)
        self.birth(np.array(self.admitted(ids, step), np.int64))
        sums: dict[int, Floats] = {}
        for key, grad in zip(ids.tolist(), grads, strict=True):
            if key in self.rows:
                sums[key] = sums[key] + grad if key in sums else grad
        for key, grad in sums.items():
            parts = self.rows[key][: self.width].reshape(-1, self.dim)
            update(parts[0], list(parts[1:]), grad, self.optimizer, rate, step)
            self.rows[key][self.width :].view(np.uint32)[:] = step
            self.changed.add(key)
        return len(sums)

    def evict(self, before_step: int) -> int:
        if self.views:
            return 0
        keys, before = list(self.rows), len(self.rows)
        for i in reversed(range(len(keys))):
            if self.rows[keys[i]][-1:].view(np.uint32)[0] < before_step:
                self.changed.discard(keys[i])
                self.removed.add(keys[i])
                keys[i] = keys[-1]
                keys.pop()
        self.rows = {key: self.rows[key] for key in keys}
        return before - len(keys)

    def pin(self, view: int) -> None:
        self.views[view] = {key: row.copy() for key, row in self.rows.items()}

    def release(self, view: int) -> None:
        del self.views[view]
        self.marks.pop(view, None)

    def mark(self, view: int) -> None:
        self.pin(view)
        removed = self.removed if self.marked else set()  # the first mark has everything
        self.marks[view], self.changed, self.removed, self.marked = (self.changed, removed), set(), set(), True

    def unmark(self, view: int) -> None:
        changed, removed = self.marks[view]
        self.changed |= changed
        self.removed |= removed
        self.release(view)

    def export(self, view: int) -> tuple[Ids, Floats]:
        table = self.views[view] if view else self.rows
        rows = np.array(list(table.values()), np.float32)
        return np.array(list(table), np.int64), rows.reshape(len(table), self.width + self.aging)

    def put(self, ids: Ids, rows: Floats) -> None:
        for key, row in zip(ids.tolist(), rows, strict=True):
            self.rows[key] = row.copy()
            self.changed.add(key)
            if self.aging:
                self.newest = max(self.newest, int(row[-1:].view(np.uint32)[0]))
