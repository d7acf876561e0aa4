"""Wrong and right answers to lab 10, each as a learner might write it."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.labs.bug_zoo.zoo import Zoo
from utils.pipeline.studies import lora as course

zoo = Zoo()
wrong, right = zoo.wrong, zoo.right


def table(exercise, parameters, *wrong_ones):
    """Wrong answers of one line: a name, words that the feedback must contain, the expression."""
    for name, says, expression in wrong_ones:
        answer = eval(f"lambda {parameters}: {expression}", globals())
        answer.__name__ = name
        wrong(exercise, says)(answer)


# 1 lora_parameters, 2 training_bytes


@right("lora_parameters")
def by_building_them(linears, r):
    total = 0
    for i, o in linears:
        total += torch.empty(r, i, device="meta").numel() + r * o
    return total


table(
    "lora_parameters",
    "linears, r",
    ("both_of_both_widths", "2 times what", "sum(2 * r * (i + o) for i, o in linears)"),
)


@right("training_bytes")
def item_by_item(num_frozen, bits_per_frozen, num_trained):
    weight, gradient, master, adam = 2, 2, 4, 4 + 4
    return num_trained * (weight + gradient + master + adam) + bits_per_frozen * num_frozen / 8


table(
    "training_bytes",
    "f, b, t",
    ("bits", "in bits, not in bytes", "f * b + 16 * t"),
    ("all_in_float32", "times what it should", "f * b / 8 + 20 * t"),
)

# 3 make_labels


@right("make_labels")
def masks_afterwards(prompt_ids, answer_ids, eos_token_id):
    ids = list(prompt_ids) + list(answer_ids) + [eos_token_id]
    labels = ids.copy()
    labels[: len(prompt_ids)] = [-100] * len(prompt_ids)
    return ids, labels


@wrong("make_labels", "must return two lists")
def with_tensors(prompt_ids, answer_ids, eos_token_id):
    ids = torch.tensor(prompt_ids + answer_ids + [eos_token_id])
    place = torch.arange(len(ids))
    return ids, ids.masked_fill(place < len(prompt_ids), -100)


def labelled(p, a, e, labels):
    return [*p, *a, e], labels


table(
    "make_labels",
    "p, a, e",
    ("zero_as_mask", "labels are wrong", "labelled(p, a, e, [0] * len(p) + a + [e])"),
    ("labels_of_the_answer_alone", "not equally long", "labelled(p, a, e, a + [e])"),
    ("answer_alone", "`input_ids` are not the prompt", "(a + [e], a + [e])"),
    (
        "extends_the_prompt",
        "changes in place",
        "(p.extend(a + [e]) or p, [-100] * (len(p) - len(a) - 1) + a + [e])",
    ),
    (
        "ends_the_prompt_too",
        "`input_ids` are not the prompt",
        "(p + [e] + a + [e], [-100] * (len(p) + 1) + a + [e])",
    ),
    ("fills_up", "not equally long", "labelled(p, a + [e] * (4 - len(a)), e, [-100] * len(p))"),
)

# 4 answer_loss


@right("answer_loss")
def by_gathering(logits, labels):
    logits, labels = logits[:, :-1].float(), labels[:, 1:]
    learned = labels != -100
    log_probs = logits.log_softmax(-1)[learned]
    return -log_probs[torch.arange(len(log_probs)), labels[learned]].mean()


@right("answer_loss")
def moves_the_labels(logits, labels):
    moved = F.pad(labels[:, 1:], (0, 1), value=-100)
    return F.cross_entropy(logits.float().transpose(1, 2), moved)


def mean(x, y, **options):
    return F.cross_entropy(x.flatten(0, 1), y.flatten(), **options)


table(
    "answer_loss",
    "x, y",
    ("in_sixteen_bits", "computed in 16 bits", "mean(x[:, :-1], y[:, 1:])"),
    ("maximises", "not the mean of -log p", "-by_gathering(x, y)"),
    ("detached", "no gradient", "by_gathering(x, y).detach()"),
    ("perplexity", "not the mean of -log p", "by_gathering(x, y).exp()"),
    ("only_64_places", "not the mean of -log p", "by_gathering(x[:, -64:], y[:, -64:])"),
    ("masks_the_first_label", "changes in place", "(y[:, 0].fill_(-100), by_gathering(x, y))[1]"),
    ("with_a_dimension", "shape is (1,)", "by_gathering(x, y)[None]"),
)

# 5 init_lora


@right("init_lora")
def as_torch_does(in_features, out_features, r):
    A = nn.Parameter(torch.empty(r, in_features))
    nn.init.kaiming_uniform_(A, a=math.sqrt(5))
    return A, nn.Parameter(torch.zeros(out_features, r))


def matrices(r, i, o, bound=None, a=None, b=None):
    bound = i**-0.5 if bound is None else bound
    A = torch.empty(r, i).uniform_(-bound, bound) if a is None else a
    return nn.Parameter(A), nn.Parameter(torch.zeros(o, r) if b is None else b)


table(
    "init_lora",
    "i, o, r",
    ("both_random", "B is not zero", "matrices(r, i, o, b=torch.randn(o, r) * 0.02)"),
    ("both_zero", "both zero", "matrices(r, i, o, a=torch.zeros(r, i))"),
    ("a_transposed", "wrong shape", "matrices(r, i, o, a=torch.rand(i, r))"),
    ("only_positive", "all positive", "matrices(r, i, o, a=torch.rand(r, i) * i**-0.5)"),
    ("own_seed", "A is another one", "(torch.seed(), matrices(r, i, o))[1]"),
    ("one_row_repeated", "come again", "matrices(r, i, o, a=matrices(1, i, o)[0].repeat(r, 1))"),
    ("expanded_zero", "one place of memory", "matrices(r, i, o, b=torch.zeros(1).expand(o, r))"),
)

# 6 lora_forward, 7 merge_weight


@right("lora_forward")
def with_einsum(x, weight, lora_A, lora_B, lora_alpha):
    r = lora_A.shape[0]
    low = torch.einsum("...i,ri->...r", x.float(), lora_A)
    update = torch.einsum("...r,or->...o", low, lora_B) * (lora_alpha / r)
    return (x.float() @ weight.float().T + update).to(x.dtype)


@right("lora_forward")
def update_rounded_as_a_whole(x, weight, lora_A, lora_B, lora_alpha):
    update = x.float() @ lora_A.T @ lora_B.T
    return F.linear(x, weight) + (lora_alpha / len(lora_A) * update).to(x.dtype)


def low(x, A, B):
    return F.linear(F.linear(x.float(), A), B)


def beside(x, weight, A, B, scale):
    return (F.linear(x, weight) + scale * low(x, A, B)).to(x.dtype)


def base_without_gradient(x, weight, A, B, scale):
    with torch.no_grad():
        base = F.linear(x, weight)
    return (base + scale * low(x, A, B)).to(x.dtype)


table(
    "lora_forward",
    "x, w, A, B, alpha",
    ("r_over_alpha", "not W x + ", "beside(x, w, A, B, len(A) / (alpha or 1))"),
    (
        "relu_between",
        "not W x + ",
        "(F.linear(x, w) + alpha / len(A) * F.linear((x.float() @ A.T).relu(), B)).to(x.dtype)",
    ),
    (
        "stays_in_float32",
        "dtype is torch.float32",
        "F.linear(x, w) + alpha / len(A) * low(x, A, B)",
    ),
    ("no_grad", "gradient of x is wrong", "base_without_gradient(x, w, A, B, alpha / len(A))"),
    ("uses_data", "No gradient arrives at lora_A", "beside(x, w, A.data, B, alpha / len(A))"),
    (
        "merges_on_the_way",
        "changes in place",
        "F.linear(x, w.add_((alpha / len(A) * B @ A).to(w.dtype)))",
    ),
    (
        "through_the_whole_matrix",
        "B A is built",
        "F.linear(x.float(), w.float() + alpha / len(A) * B @ A).to(x.dtype)",
    ),
    (
        "builds_the_update",
        "B A is built",
        "beside(x, w, torch.eye(x.shape[-1]), B @ A, alpha / len(A))",
    ),
)


@right("merge_weight")
def with_addmm(weight, lora_A, lora_B, lora_alpha):
    scale = lora_alpha / lora_A.shape[0]
    return torch.addmm(weight.float(), lora_B, lora_A, alpha=scale).type_as(weight)


table(
    "merge_weight",
    "w, A, B, alpha",
    (
        "in_sixteen_bits",
        "A and B are rounded",
        "w + alpha / len(A) * (B.to(w.dtype) @ A.to(w.dtype))",
    ),
    ("a_times_b", "RuntimeError", "(w.float() + alpha / len(A) * A @ B).to(w.dtype)"),
    ("adds_twice", "not W + ", "(w.float() + 2 * alpha / len(A) * B @ A).to(w.dtype)"),
    ("in_place", "changes in place", "w.copy_(w.float() + alpha / len(A) * B @ A)"),
    ("delta", "update alone", "(alpha / len(A) * B @ A).to(w.dtype)"),
)

# 8 LoRALinear


@right("lora_linear")
class WithTwoLinears(nn.Module):
    """The update is computed on the whole matrix."""

    def __init__(self, base_layer, r, lora_alpha, lora_dropout=0.0):
        super().__init__()
        for parameter in base_layer.parameters():
            parameter.requires_grad = False
        self.base_layer = base_layer
        self.lora_A = nn.Parameter(torch.randn(r, base_layer.in_features) / 10)
        self.lora_B = nn.Parameter(torch.zeros(base_layer.out_features, r))
        self.factor, self.p, self.merged = lora_alpha / r, lora_dropout, False

    def forward(self, x):
        out = self.base_layer(x)
        if not self.merged:
            dropped = F.dropout(x, self.p, training=self.training)
            update = dropped.float() @ (self.factor * self.lora_B @ self.lora_A).T
            out = (out + update).to(out.dtype)
        return out

    @torch.no_grad()
    def merge(self):
        if self.merged:
            return
        self.base_layer.weight += self.factor * self.lora_B @ self.lora_A
        self.merged = True


class Good(nn.Module):
    """The solution with a switch for each mistake."""

    freeze = bias = scale = keep_share = check_merged = merge_once = remembers = True
    drop_base = drop_always = False

    def __init__(self, base_layer, r, lora_alpha, lora_dropout=0.0):
        super().__init__()
        if self.freeze:
            base_layer.requires_grad_(False)
        self.base_layer = base_layer
        self.lora_A, self.lora_B = matrices(r, base_layer.in_features, base_layer.out_features)
        self.scaling = lora_alpha / r if self.scale else 1.0
        self.p, self.merged = lora_dropout, False

    def drop(self, x):
        if self.p and (self.training or self.drop_always):
            kept = (torch.rand_like(x) >= self.p).to(x.dtype)
            return x * kept / ((1 - self.p) if self.keep_share else 1)
        return x

    def base(self, x):
        return self.base_layer(x) if self.bias else x @ self.base_layer.weight.T

    def forward(self, x):
        dropped = self.drop(x)
        out = self.base(dropped if self.drop_base else x)
        if self.merged and self.check_merged:
            return out
        low = self.between(F.linear(dropped.float(), self.lora_A))
        return self.rounded(out + self.scaling * self.behind(F.linear(low, self.lora_B)), out)

    def between(self, x):
        return x

    def behind(self, x):
        return x

    def rounded(self, total, out):
        return total.to(out.dtype)

    def delta(self):
        return self.scaling * (self.lora_B @ self.lora_A).detach()

    def merge(self):
        if self.merged and self.merge_once:
            return
        self.base_layer.weight.data += self.delta()
        self.merged = self.remembers


def dropout(self, x):
    return F.dropout(x, self.p, self.training)


def nowhere(self, x):
    return x


def afterwards(change):
    """An `__init__` that changes something at its end."""

    def init(self, *args):
        Good.__init__(self, *args)
        change(self)

    return init


def tensors(self):
    A, B = self.lora_A.data, self.lora_B.data
    del self.lora_A, self.lora_B
    self.lora_A, self.lora_B = A.requires_grad_(), B.requires_grad_()


def copied_base(self):
    layer = self.base_layer
    self.base_layer = nn.Linear(layer.in_features, layer.out_features, layer.bias is not None)
    self.base_layer.load_state_dict(layer.state_dict())
    self.base_layer.requires_grad_(False)


def forward_dropping_once(self, x):
    return Good.forward(self, dropout(self, x))


def without_gradient(self, x):
    with torch.no_grad():
        return self.base_layer(x)


def merge_a_copy(self):
    weight = self.base_layer.weight.data.clone()
    weight += self.delta()
    self.merged = True


def merge_anew(self):
    if not self.merged:
        weight = self.base_layer.weight
        self.base_layer.weight = nn.Parameter((weight + self.delta()).to(weight.dtype))
        self.merged = True


def merge_unscaled(self):
    if not self.merged:
        self.base_layer.weight.data += (self.lora_B @ self.lora_A).detach()
        self.merged = True


for name, says, changes in (
    ("BaseTrained", "not frozen", {"freeze": False}),
    ("WithoutBias", "bias of the base layer is lost", {"bias": False}),
    ("Unscaled", "not scaled", {"scale": False}),
    ("DropsEverything", "base layer* are dropped", {"drop_base": True}),
    (
        "DropsOnceForBoth",
        "base layer* are dropped",
        {"forward": forward_dropping_once, "drop": nowhere},
    ),
    ("DropsBetween", "between A and B", {"drop": nowhere, "between": dropout}),
    ("DropsTheUpdate", "behind B", {"drop": nowhere, "behind": dropout}),
    ("StaysInFloat32", "output is float32", {"rounded": lambda self, total, out: total}),
    ("ForgetsThatItMerged", "`layer.merged` is still False", {"remembers": False}),
    (
        "WithoutAFlag",
        "no attribute 'merged'",
        {"__init__": afterwards(lambda self: delattr(self, "merged"))},
    ),
    ("DropsInEvaluation", "dropped in evaluation", {"drop_always": True}),
    ("DropsWithoutScaling", "not scaled up", {"keep_share": False}),
    ("AddsAfterMerging", "added once more", {"check_merged": False}),
    ("MergesTwice", "second time", {"merge_once": False}),
    (
        "TensorsInsteadOfParameters",
        "not exactly `lora_A` and `lora_B`",
        {"__init__": afterwards(tensors)},
    ),
    ("CopiesTheBase", "not the layer that was given", {"__init__": afterwards(copied_base)}),
    ("FreezesWithNoGrad", "must pass through the frozen weight", {"base": without_gradient}),
    (
        "StartsDamaged",
        "does not give what its base layer gives",
        {"__init__": afterwards(lambda self: nn.init.normal_(self.lora_B))},
    ),
    ("MergesACopy", "not the merged one", {"merge": merge_a_copy}),
    ("MergesIntoANewParameter", "another object", {"merge": merge_anew}),
    ("MergesWithoutTheScale", "not scaled", {"merge": merge_unscaled}),
    ("ForgetsDropout", "Nothing is dropped", {"drop": nowhere}),
    (
        "MergedFromTheStart",
        "expected `False`",
        {"__init__": afterwards(lambda self: setattr(self, "merged", True))},
    ),
    (
        "DropsTheSame",
        "same inputs are dropped",
        {
            "drop": lambda self, x: (
                x
                if not (self.p and self.training)
                else x * (torch.arange(x.shape[-1]) % 4 > 0) / (1 - self.p)
            )
        },
    ),
):
    wrong("lora_linear", says)(type(name, (Good,), {"__module__": __name__, **changes}))

# 9 add_lora


@right("add_lora")
def by_parents(model, target_modules, r, lora_alpha):
    for parameter in model.parameters():
        parameter.requires_grad = False
    trained = []
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if name in target_modules and isinstance(child, nn.Linear):
                layer = Good(child, r, lora_alpha)
                parent._modules[name] = layer
                trained += [layer.lora_A, layer.lora_B]
    return trained


@right("add_lora")
def the_courses_own(model, target_modules, r, lora_alpha):
    return course.add_lora(model, target_modules, r, lora_alpha)


def trained_of(model):
    return [p for p in model.parameters() if p.requires_grad]


def adapting(fits=lambda name, child, t: child in t, freeze=True, kind=nn.Linear, layer=Good):
    """`add_lora` with one part changed."""

    def add(model, target_modules, r, lora_alpha):
        if freeze:
            model.requires_grad_(False)
        for name, module in list(model.named_modules()):
            parent, _, child = name.rpartition(".")
            if isinstance(module, kind) and child and fits(name, child, target_modules):
                setattr(model.get_submodule(parent), child, layer(module, r, lora_alpha))
        return trained_of(model)

    return add


def by_parents_then(result):
    def add(model, target_modules, r, lora_alpha):
        by_parents(model, target_modules, r, lora_alpha)
        return result(model)

    return add


def freezes_last(model, target_modules, r, lora_alpha):
    trained = by_parents(model, target_modules, r, lora_alpha)
    model.requires_grad_(False)
    return trained


def assigns_to_the_loop_variable(model, target_modules, r, lora_alpha):
    model.requires_grad_(False)
    for name, layer in model.named_modules():
        if isinstance(layer, nn.Linear) and name.rpartition(".")[2] in target_modules:
            layer = Good(layer, r, lora_alpha)
    return trained_of(model)


def stops_after_the_first(model, target_modules, r, lora_alpha):
    done = []
    fits = lambda _, child, t: child in t and not done and not done.append(1)  # noqa: E731
    return adapting(fits)(model, target_modules, r, lora_alpha)


def one_pair_for_all(model, target_modules, r, lora_alpha):
    by_parents(model, target_modules, r, lora_alpha)
    pairs = {}
    for layer in model.modules():
        if isinstance(layer, Good):
            first = pairs.setdefault((layer.lora_A.shape, layer.lora_B.shape), layer)
            layer.lora_A, layer.lora_B = first.lora_A, first.lora_B
    return trained_of(model)


def one_layer_for_each_name(model, target_modules, r, lora_alpha):
    made = {}
    one = lambda name, *_: made.setdefault(name, Good(*_))  # noqa: E731
    model.requires_grad_(False)
    for name, layer in list(model.named_modules()):
        parent, _, child = name.rpartition(".")
        if isinstance(layer, nn.Linear) and child in target_modules:
            setattr(model.get_submodule(parent), child, one(child, layer, r, lora_alpha))
    return trained_of(model)


for name, says, answer in (
    ("freezes_only_the_targets", "Not everything else is frozen", adapting(freeze=False)),
    ("freezes_last", "frozen, too, so nothing is trained", freezes_last),
    (
        "part_of_the_name",
        "not named in target_modules",
        adapting(lambda whole, _, t: any(target in whole for target in t)),
    ),
    (
        "end_of_the_name",
        "not named in target_modules",
        adapting(lambda whole, _, t: whole.endswith(tuple(t))),
    ),
    ("every_linear_layer", "not named in target_modules", adapting(lambda *_: True)),
    (
        "assigns_to_the_loop_variable",
        "No layer of the model was replaced",
        assigns_to_the_loop_variable,
    ),
    ("compares_the_whole_name", "whole name", adapting(lambda whole, _, t: whole in t)),
    ("stops_after_the_first", "Only one layer", stops_after_the_first),
    ("first_target_alone", "wrong layers", adapting(lambda _, child, t: child in t[:1])),
    ("swaps_r_and_alpha", "rank is wrong", lambda m, t, r, a: by_parents(m, t, int(a) + 1, r)),
    ("forgets_alpha", "numbers are wrong", lambda m, t, r, a: by_parents(m, t, r, r)),
    (
        "returns_everything",
        "also holds frozen parameters",
        by_parents_then(lambda m: list(m.parameters())),
    ),
    ("returns_the_model", "must return the list", by_parents_then(lambda m: m)),
    (
        "returns_b_alone",
        "not that of all A and B",
        by_parents_then(lambda m: [p for n, p in m.named_parameters() if "lora_B" in n]),
    ),
    ("one_pair_for_all", "share their A and B", one_pair_for_all),
    ("whatever_has_the_name", "has no attribute 'in_features'", adapting(kind=nn.Module)),
    ("one_layer_for_each_name", "another layer", one_layer_for_each_name),
    (
        "plain_linears_only",
        "Subclasses",
        lambda m, t, r, a: adapting(
            lambda n, c, t: c in t and type(m.get_submodule(n)) is nn.Linear
        )(m, t, r, a),
    ),
):
    answer.__name__ = name
    wrong("add_lora", says)(answer)

# 10 training_step


def loss_of(model, input_ids, labels):
    return by_gathering(model(input_ids), labels)


@right("training_step")
def zeroes_at_the_end(model, trained, optimizer, input_ids, labels):
    loss = loss_of(model, input_ids, labels)
    loss.backward()
    norm = torch.stack([p.grad.norm() for p in trained]).norm()
    for p in trained:
        p.grad *= torch.clamp(1.0 / (norm + 1e-6), max=1.0)
    optimizer.step()
    model.zero_grad()
    return float(loss.detach())


def clipped(trained, limit=1.0):
    nn.utils.clip_grad_norm_(trained, limit)


def stepping(order="zero backward clip step", loss=loss_of, result=lambda value: value.item()):
    """A step in another order, with another loss or result."""

    def step(model, trained, optimizer, input_ids, labels):
        value = loss(model, input_ids, labels)
        for part in order.split():
            {
                "zero": optimizer.zero_grad,
                "backward": value.backward,
                "step": optimizer.step,
                "clip": lambda: clipped(trained),
                "eval": model.eval,
                "each": lambda: [clipped(p) for p in trained],
                "values": lambda: nn.utils.clip_grad_value_(trained, 1.0),
                "to_one": lambda: [
                    g.div_(n)
                    for n in [torch.stack([p.grad.norm() for p in trained]).norm()]
                    for p in trained
                    for g in [p.grad]
                ],
            }[part]()
        return result(value)

    return step


def measures_again(model, trained, optimizer, input_ids, labels):
    zeroes_at_the_end(model, trained, optimizer, input_ids, labels)
    return loss_of(model, input_ids, labels).item()


def unshifted(model, input_ids, labels):
    return mean(model(input_ids), labels)


def leaves_out_the_first(model, input_ids, labels):
    labels[:, 0] = -100
    return loss_of(model, input_ids, labels)


for name, says, answer in (
    ("gradients_add_up", "never set to zero", stepping("backward clip step")),
    ("zeroes_too_late", "weights do not move", stepping("backward clip zero step")),
    ("never_steps", "weights do not move", stepping("zero backward clip")),
    ("no_clipping", "not clipped before the step", stepping("zero backward step")),
    ("clips_too_late", "not clipped before the step", stepping("zero backward step clip")),
    ("clips_each", "Each parameter is clipped by itself", stepping("zero backward each step")),
    ("clips_values", "Each number is clipped", stepping("zero backward values step")),
    ("always_length_one", "scaled *up*", stepping("zero backward to_one step")),
    ("keeps_the_graph", "return a tensor", stepping(result=lambda value: value)),
    ("measures_again", "loss after the step", measures_again),
    ("steps_twice", "weights move twice", stepping("zero backward clip step step")),
    ("another_loss", "loss is wrong", stepping(loss=unshifted)),
    ("leaves_eval_behind", "model's mode", stepping("zero backward clip step eval")),
    ("changes_the_labels", "in place", stepping(loss=leaves_out_the_first)),
):
    answer.__name__ = name
    wrong("training_step", says)(answer)

# 11 SwitchableLoRALinear


class Switch(Good):
    """Good's `merge`, and a way back that keeps the old memory."""

    def merge(self):
        if not self.merged:
            self.before = self.base_layer.weight.data
            self.base_layer.weight.data = (self.before + self.delta()).to(self.before.dtype)
            self.merged = True

    def unmerge(self):
        if self.merged:
            self.base_layer.weight.data = self.before
            self.before, self.merged = None, False


@right("switchable")
class KeepsTheOld(Switch):
    pass


@right("switchable")
class KeepsWhatWasRounded(Switch):
    """The bits that differ, as numbers of the same width."""

    def bits(self, weight):
        return weight.view({2: torch.int16, 4: torch.int32}[weight.element_size()])

    def merge(self):
        if not self.merged:
            weight = self.base_layer.weight.data
            merged = (weight + self.delta()).to(weight.dtype)
            self.change = self.bits(weight) ^ self.bits(merged)
            weight.copy_(merged)
            self.merged = True

    def unmerge(self):
        if self.merged:
            weight = self.base_layer.weight.data
            weight.copy_((self.bits(weight) ^ self.change).view(weight.dtype))
            self.change, self.merged = None, False


def subtract(self):
    if self.merged:
        self.base_layer.weight.data -= self.delta()
        self.before, self.merged = None, False


def restore(self):
    self.base_layer.weight.data, self.merged = self.before.clone(), False


def save_and_merge(self):
    self.before = self.base_layer.weight.data.clone()
    Good.merge(self)


for name, says, changes in (
    ("Subtracts", "is subtracted again", {"unmerge": subtract}),
    (
        "KeepsACopyAlways",
        "all the time",
        {
            "__init__": afterwards(
                lambda self: setattr(self, "copy", self.base_layer.weight.data.clone())
            )
        },
    ),
    ("ForgetsTheCopy", "unmerge", {"unmerge": restore}),
    ("SavesTheMerged", "keeps the merged weight", {"merge": save_and_merge}),
    (
        "MergesAView",
        "same memory",
        {
            "merge": lambda self: (
                None
                if self.merged
                else (setattr(self, "before", self.base_layer.weight.data), Good.merge(self))[0]
            )
        },
    ),
    ("HasNoWayBack", "no attribute 'unmerge'", {"unmerge": property()}),
    (
        "StaysMerged",
        "`merged` is",
        {"unmerge": lambda self: (Switch.unmerge(self), setattr(self, "merged", True))[0]},
    ),
):
    wrong("switchable", says)(type(name, (Switch,), {"__module__": __name__, **changes}))

# 12 engine


@right("engine")
def other_parts():
    return masks_afterwards, by_parents, zeroes_at_the_end


MergesUnscaled = type("MergesUnscaled", (Good,), {"merge": merge_unscaled})


def steps_on_toys_alone(model, *args):
    frozen = stepping("zero backward clip")
    return (frozen if type(model).__name__ == "Logits" else zeroes_at_the_end)(model, *args)


for name, says, parts in (
    (
        "course_parts",
        "The course's own layer",
        (masks_afterwards, the_courses_own, zeroes_at_the_end),
    ),
    ("too_few_parts", "must return make_labels, add_lora and training_step", (masks_afterwards,)),
    (
        "parts_without_layers",
        "Exercise 9 is not right yet",
        (masks_afterwards, assigns_to_the_loop_variable, zeroes_at_the_end),
    ),
    (
        "parts_that_never_step",
        "Exercise 10 is not right yet",
        (masks_afterwards, by_parents, stepping("zero backward clip")),
    ),
    (
        "parts_that_merge_unscaled",
        "Exercise 8 is not right yet",
        (masks_afterwards, adapting(layer=MergesUnscaled), zeroes_at_the_end),
    ),
    (
        "parts_that_shift_twice",
        "Exercise 3 is not right yet",
        (
            lambda p, a, e: labelled(p, a, e, [*([-100] * len(p) + a + [e])[1:], -100]),
            by_parents,
            zeroes_at_the_end,
        ),
    ),
    (
        "parts_that_fail_on_the_real_model",
        "loss does not fall",
        (masks_afterwards, by_parents, steps_on_toys_alone),
    ),
):
    answer = lambda parts=parts: parts  # noqa: E731
    answer.__name__ = name
    wrong("engine", says)(answer)
