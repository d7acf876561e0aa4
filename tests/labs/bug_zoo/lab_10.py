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

# 1 lora_parameters


@right("lora_parameters")
def by_building_them(linears, r):
    total = 0
    for i, o in linears:
        total += torch.empty(r, i).numel() + torch.empty(o, r).numel()
    return total


@wrong("lora_parameters", "as large as the weight")
def counts_the_product(linears, r):
    return sum(i * o for i, o in linears)


@wrong("lora_parameters", "once for each rank")
def product_times_r(linears, r):
    return sum(r * i * o for i, o in linears)


@wrong("lora_parameters", "Only A is counted")
def a_alone(linears, r):
    return sum(r * i for i, _ in linears)


@wrong("lora_parameters", "Only B is counted")
def b_alone(linears, r):
    return sum(r * o for _, o in linears)


@wrong("lora_parameters", "r is missing")
def no_rank(linears, r):
    return sum(sum(pair) for pair in linears)


@wrong("lora_parameters", "frozen weights are counted")
def frozen_too(linears, r):
    return sum(i * o + r * i + r * o for i, o in linears)


@wrong("lora_parameters", "Only one layer")
def returns_in_the_loop(linears, r):
    for i, o in linears:
        return r * (i + o)
    return 0


# 2 training_bytes


@right("training_bytes")
def item_by_item(num_frozen, bits_per_frozen, num_trained):
    weight, gradient, master, adam = 2, 2, 4, 4 + 4
    return num_trained * (weight + gradient + master + adam) + bits_per_frozen * num_frozen / 8


@wrong("training_bytes", "in bits, not in bytes")
def bits(num_frozen, bits_per_frozen, num_trained):
    return num_frozen * bits_per_frozen + 16 * num_trained


@wrong("training_bytes", "full 16 bytes")
def everything_trained(num_frozen, bits_per_frozen, num_trained):
    return 16 * (num_frozen + num_trained)


@wrong("training_bytes", "no optimizer state")
def states_for_frozen_weights(num_frozen, bits_per_frozen, num_trained):
    return num_frozen * bits_per_frozen / 8 + 2 * num_trained + 14 * (num_frozen + num_trained)


@wrong("training_bytes", "frozen weights are missing")
def adapter_alone(num_frozen, bits_per_frozen, num_trained):
    return 16 * num_trained


@wrong("training_bytes", "master copy")
def no_masters(num_frozen, bits_per_frozen, num_trained):
    return num_frozen * bits_per_frozen / 8 + (2 + 2 + 8) * num_trained


@wrong("training_bytes", "gradients are missing")
def no_gradients(num_frozen, bits_per_frozen, num_trained):
    return num_frozen * bits_per_frozen / 8 + (2 + 4 + 8) * num_trained


@wrong("training_bytes", "Adam's states")
def as_with_sgd(num_frozen, bits_per_frozen, num_trained):
    return num_frozen * bits_per_frozen / 8 + (2 + 2 + 4) * num_trained


@wrong("training_bytes", "bits are cut")
def whole_bits(num_frozen, bits_per_frozen, num_trained):
    return num_frozen * int(bits_per_frozen) / 8 + 16 * num_trained


@wrong("training_bytes", "swapped")
def trained_and_frozen_swapped(num_frozen, bits_per_frozen, num_trained):
    return 16 * num_frozen + num_trained * bits_per_frozen / 8


# 3 make_labels


@right("make_labels")
def masks_afterwards(prompt_ids, answer_ids, eos_token_id):
    ids = list(prompt_ids) + list(answer_ids) + [eos_token_id]
    labels = ids.copy()
    labels[: len(prompt_ids)] = [-100] * len(prompt_ids)
    return ids, labels


@right("make_labels")
def with_tensors(prompt_ids, answer_ids, eos_token_id):
    ids = torch.tensor(prompt_ids + answer_ids + [eos_token_id])
    place = torch.arange(len(ids))
    return ids, ids.masked_fill(place < len(prompt_ids), -100)


@wrong("make_labels", "end token is missing")
def never_stops(prompt_ids, answer_ids, eos_token_id):
    return prompt_ids + answer_ids, [-100] * len(prompt_ids) + answer_ids


@wrong("make_labels", "read, but not learned")
def end_token_as_padding(prompt_ids, answer_ids, eos_token_id):
    ids = [*prompt_ids, *answer_ids, eos_token_id]
    labels = [-100] * len(prompt_ids) + ids[len(prompt_ids) :]
    return ids, [-100 if label == eos_token_id else label for label in labels]


@wrong("make_labels", "prompt is learned, too")
def copies_the_ids(prompt_ids, answer_ids, eos_token_id):
    ids = [*prompt_ids, *answer_ids, eos_token_id]
    return ids, ids.copy()


@wrong("make_labels", "wrong way round")
def masks_the_answer(prompt_ids, answer_ids, eos_token_id):
    ids = [*prompt_ids, *answer_ids, eos_token_id]
    return ids, prompt_ids + [-100] * (len(answer_ids) + 1)


@wrong("make_labels", "first token of the answer is never learned")
def one_too_many(prompt_ids, answer_ids, eos_token_id):
    ids = [*prompt_ids, *answer_ids, eos_token_id]
    border = len(prompt_ids) + 1
    return ids, [-100] * border + ids[border:]


@wrong("make_labels", "last token of the prompt is learned")
def one_too_few(prompt_ids, answer_ids, eos_token_id):
    ids = [*prompt_ids, *answer_ids, eos_token_id]
    border = len(prompt_ids) - 1
    return ids, [-100] * border + ids[border:]


@wrong("make_labels", "shifted by one already")
def shifts_here(prompt_ids, answer_ids, eos_token_id):
    ids, labels = masks_afterwards(prompt_ids, answer_ids, eos_token_id)
    return ids, [*labels[1:], -100]


@wrong("make_labels", "0 is a token")
def zero_as_mask(prompt_ids, answer_ids, eos_token_id):
    ids = [*prompt_ids, *answer_ids, eos_token_id]
    return ids, [0] * len(prompt_ids) + [*answer_ids, eos_token_id]


@wrong("make_labels", "as long as the answer")
def labels_of_the_answer_alone(prompt_ids, answer_ids, eos_token_id):
    return [*prompt_ids, *answer_ids, eos_token_id], [*answer_ids, eos_token_id]


@wrong("make_labels", "prompt is missing")
def answer_alone(prompt_ids, answer_ids, eos_token_id):
    return [*answer_ids, eos_token_id], [*answer_ids, eos_token_id]


@wrong("make_labels", "also stand in the prompt")
def masks_by_value(prompt_ids, answer_ids, eos_token_id):
    ids = [*prompt_ids, *answer_ids, eos_token_id]
    return ids, [-100 if token in prompt_ids else token for token in ids]


@wrong("make_labels", "changes its arguments")
def extends_the_prompt(prompt_ids, answer_ids, eos_token_id):
    labels = [-100] * len(prompt_ids) + answer_ids + [eos_token_id]
    prompt_ids += [*answer_ids, eos_token_id]
    return prompt_ids, labels


@wrong("make_labels", "Both names mean the same list")
def one_list_with_two_names(prompt_ids, answer_ids, eos_token_id):
    ids = [*prompt_ids, *answer_ids, eos_token_id]
    labels = ids
    labels[: len(prompt_ids)] = [-100] * len(prompt_ids)
    return ids, labels


@wrong("make_labels", "two lists are swapped")
def labels_first(prompt_ids, answer_ids, eos_token_id):
    ids = [*prompt_ids, *answer_ids, eos_token_id]
    return [-100] * len(prompt_ids) + [*answer_ids, eos_token_id], ids


@wrong("make_labels", "between prompt and answer")
def ends_the_prompt_too(prompt_ids, answer_ids, eos_token_id):
    prompt, target = [*prompt_ids, eos_token_id], [*answer_ids, eos_token_id]
    return prompt + target, [-100] * len(prompt) + target


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


@wrong("answer_loss", "shift is missing")
def no_shift(logits, labels):
    return F.cross_entropy(logits.float().flatten(0, 1), labels.flatten())


@wrong("answer_loss", "wrong way round")
def shifts_backwards(logits, labels):
    return F.cross_entropy(logits[:, 1:].float().flatten(0, 1), labels[:, :-1].flatten())


@wrong("answer_loss", "divide by all places")
def mean_over_all_places(logits, labels):
    loss = F.cross_entropy(
        logits[:, :-1].float().flatten(0, 1), labels[:, 1:].flatten(), reduction="none"
    )
    return loss.mean()


@wrong("answer_loss", "average per text")
def mean_of_means(logits, labels):
    pairs = zip(logits[:, :-1].float(), labels[:, 1:], strict=True)
    return torch.stack([F.cross_entropy(x, y) for x, y in pairs]).mean()


@wrong("answer_loss", "learned as token 0")
def padding_counts(logits, labels):
    labels = labels.clamp(min=0)
    return F.cross_entropy(logits[:, :-1].float().flatten(0, 1), labels[:, 1:].flatten())


@wrong("answer_loss", "return the sum")
def sums(logits, labels):
    x, y = logits[:, :-1].float().flatten(0, 1), labels[:, 1:].flatten()
    return F.cross_entropy(x, y, reduction="sum")


@wrong("answer_loss", "softmax is applied twice")
def softmax_first(logits, labels):
    probs = logits[:, :-1].float().softmax(-1)
    return F.cross_entropy(probs.flatten(0, 1), labels[:, 1:].flatten())


@wrong("answer_loss", "computed in bfloat16")
def in_sixteen_bits(logits, labels):
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())


@wrong("answer_loss", "computed in bfloat16")
def converts_too_late(logits, labels):
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()).float()


@wrong("answer_loss", "sign is wrong")
def maximises(logits, labels):
    return -by_gathering(logits, labels)


@wrong("answer_loss", "no gradient")
def detached(logits, labels):
    return by_gathering(logits, labels).detach()


@wrong("answer_loss", "perplexity")
def perplexity(logits, labels):
    return by_gathering(logits, labels).exp()


@wrong("answer_loss", "joined before the shift")
def joins_the_texts_first(logits, labels):
    logits, labels = logits.float().flatten(0, 1), labels.flatten()
    return F.cross_entropy(logits[:-1], labels[1:], ignore_index=-100)


@wrong("answer_loss", "infinite in float32")
def softmax_by_hand(logits, labels):
    logits, labels = logits[:, :-1].float(), labels[:, 1:]
    learned = labels != -100
    odds = torch.exp(logits[learned])
    right = odds.gather(1, labels[learned][:, None])[:, 0]
    return -torch.log(right / odds.sum(-1)).mean()


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


@wrong("init_lora", "B is not zero")
def both_random(in_features, out_features, r):
    return matrices(r, in_features, out_features, b=torch.randn(out_features, r) * 0.02)


@wrong("init_lora", "other way round")
def a_zero_b_random(in_features, out_features, r):
    A = torch.zeros(r, in_features)
    return matrices(r, in_features, out_features, a=A, b=torch.randn(out_features, r) * 0.02)


@wrong("init_lora", "both zero")
def both_zero(in_features, out_features, r):
    return matrices(r, in_features, out_features, a=torch.zeros(r, in_features))


@wrong("init_lora", "swapped")
def swapped_shapes(in_features, out_features, r):
    A = torch.empty(out_features, r).uniform_(-0.1, 0.1)
    return nn.Parameter(A), nn.Parameter(torch.zeros(r, in_features))


@wrong("init_lora", "A has the wrong shape")
def a_transposed(in_features, out_features, r):
    return matrices(r, in_features, out_features, a=torch.rand(in_features, r))


@wrong("init_lora", "all positive")
def only_positive(in_features, out_features, r):
    A = torch.rand(r, in_features) * in_features**-0.5
    return matrices(r, in_features, out_features, a=A)


@wrong("init_lora", "normal distribution")
def normal(in_features, out_features, r):
    A = torch.randn(r, in_features) * in_features**-0.5
    return matrices(r, in_features, out_features, a=A)


@wrong("init_lora", "taken from out_features")
def bound_of_the_output(in_features, out_features, r):
    return matrices(r, in_features, out_features, bound=out_features**-0.5)


@wrong("init_lora", "taken from r")
def bound_of_the_rank(in_features, out_features, r):
    return matrices(r, in_features, out_features, bound=r**-0.5)


@wrong("init_lora", "square root is missing")
def no_root(in_features, out_features, r):
    return matrices(r, in_features, out_features, bound=1 / in_features)


@wrong("init_lora", "no nn.Parameter")
def plain_tensors(in_features, out_features, r):
    A, B = matrices(r, in_features, out_features)
    return A.data, B.data


@wrong("init_lora", "same in each call")
def seeded(in_features, out_features, r):
    torch.manual_seed(0)
    return matrices(r, in_features, out_features)


@wrong("init_lora", "rows of A are the same")
def one_row_repeated(in_features, out_features, r):
    bound = in_features**-0.5
    row = torch.empty(1, in_features).uniform_(-bound, bound)
    return nn.Parameter(row.repeat(r, 1)), nn.Parameter(torch.zeros(out_features, r))


# 6 lora_forward


@right("lora_forward")
def with_einsum(x, weight, lora_A, lora_B, lora_alpha):
    r = lora_A.shape[0]
    low = torch.einsum("...i,ri->...r", x.float(), lora_A)
    update = torch.einsum("...r,or->...o", low, lora_B) * (lora_alpha / r)
    return (x.float() @ weight.float().T + update).to(x.dtype)


@right("lora_forward")
def through_the_whole_matrix(x, weight, lora_A, lora_B, lora_alpha):
    whole = weight.float() + lora_alpha / len(lora_A) * lora_B @ lora_A
    return F.linear(x.float(), whole).to(x.dtype)


def beside(x, weight, A, B, scale):
    return (F.linear(x, weight) + scale * F.linear(F.linear(x.float(), A), B)).to(x.dtype)


@wrong("lora_forward", "not scaled")
def unscaled(x, weight, lora_A, lora_B, lora_alpha):
    return beside(x, weight, lora_A, lora_B, 1)


@wrong("lora_forward", "not divided by r")
def alpha_without_r(x, weight, lora_A, lora_B, lora_alpha):
    return beside(x, weight, lora_A, lora_B, lora_alpha)


@wrong("lora_forward", "upside down")
def r_over_alpha(x, weight, lora_A, lora_B, lora_alpha):
    return beside(x, weight, lora_A, lora_B, lora_A.shape[0] / lora_alpha)


@wrong("lora_forward", "square root of r")
def rank_stabilised(x, weight, lora_A, lora_B, lora_alpha):
    return beside(x, weight, lora_A, lora_B, lora_alpha / lora_A.shape[0] ** 0.5)


@wrong("lora_forward", "width of the input")
def r_from_the_wrong_side(x, weight, lora_A, lora_B, lora_alpha):
    return beside(x, weight, lora_A, lora_B, lora_alpha / lora_A.shape[1])


@wrong("lora_forward", "width of the output")
def r_from_b(x, weight, lora_A, lora_B, lora_alpha):
    return beside(x, weight, lora_A, lora_B, lora_alpha / lora_B.shape[0])


@wrong("lora_forward", "W x is missing")
def update_alone(x, weight, lora_A, lora_B, lora_alpha):
    return beside(x, torch.zeros_like(weight), lora_A, lora_B, lora_alpha / lora_A.shape[0])


@wrong("lora_forward", "W x is scaled, too")
def scales_the_sum(x, weight, lora_A, lora_B, lora_alpha):
    both = F.linear(x, weight).float() + F.linear(F.linear(x.float(), lora_A), lora_B)
    return (both * lora_alpha / lora_A.shape[0]).to(x.dtype)


@wrong("lora_forward", "nonlinearity")
def relu_between(x, weight, lora_A, lora_B, lora_alpha):
    low = F.linear(x.float(), lora_A).relu()
    scaled = lora_alpha / lora_A.shape[0] * F.linear(low, lora_B)
    return (F.linear(x, weight) + scaled).to(x.dtype)


@wrong("lora_forward", "dtype is float32")
def stays_in_float32(x, weight, lora_A, lora_B, lora_alpha):
    scale = lora_alpha / lora_A.shape[0]
    return F.linear(x, weight) + scale * F.linear(F.linear(x.float(), lora_A), lora_B)


@wrong("lora_forward", "gradient of x is wrong")
def base_without_gradient(x, weight, lora_A, lora_B, lora_alpha):
    with torch.no_grad():
        base = F.linear(x, weight)
    scale = lora_alpha / lora_A.shape[0]
    return (base + scale * F.linear(F.linear(x.float(), lora_A), lora_B)).to(x.dtype)


@wrong("lora_forward", "No gradient arrives at lora_A")
def uses_data(x, weight, lora_A, lora_B, lora_alpha):
    return beside(x, weight, lora_A.data, lora_B, lora_alpha / lora_A.shape[0])


@wrong("lora_forward", "changes its argument")
def merges_on_the_way(x, weight, lora_A, lora_B, lora_alpha):
    weight += (lora_alpha / lora_A.shape[0] * lora_B @ lora_A).to(weight.dtype)
    return F.linear(x, weight)


@wrong("lora_forward", "computed in bfloat16")
def all_in_the_type_of_x(x, weight, lora_A, lora_B, lora_alpha):
    A, B = lora_A.to(x.dtype), lora_B.to(x.dtype)
    return F.linear(x, weight) + lora_alpha / len(A) * F.linear(F.linear(x, A), B)


@wrong("lora_forward", "cut to a whole number")
def floor_division(x, weight, lora_A, lora_B, lora_alpha):
    update = F.linear(F.linear(x.float(), lora_A), lora_B)
    return (F.linear(x, weight) + lora_alpha // len(lora_A) * update).to(x.dtype)


@right("lora_forward")
def update_rounded_as_a_whole(x, weight, lora_A, lora_B, lora_alpha):
    update = x.float() @ lora_A.T @ lora_B.T
    return F.linear(x, weight) + (lora_alpha / len(lora_A) * update).to(x.dtype)


# 7 merge_weight


@right("merge_weight")
def with_addmm(weight, lora_A, lora_B, lora_alpha):
    scale = lora_alpha / lora_A.shape[0]
    return torch.addmm(weight.float(), lora_B, lora_A, alpha=scale).type_as(weight)


@wrong("merge_weight", "scale lora_alpha / r is missing")
def merges_unscaled(weight, lora_A, lora_B, lora_alpha):
    return (weight.float() + lora_B @ lora_A).to(weight.dtype)


@wrong("merge_weight", "not divided by r")
def merges_with_alpha(weight, lora_A, lora_B, lora_alpha):
    return (weight.float() + lora_alpha * lora_B @ lora_A).to(weight.dtype)


@wrong("merge_weight", "rounded to bfloat16 before")
def rounds_the_update(weight, lora_A, lora_B, lora_alpha):
    return weight + (lora_alpha / lora_A.shape[0] * lora_B @ lora_A).to(weight.dtype)


@wrong("merge_weight", "A and B are rounded")
def multiplies_in_sixteen_bits(weight, lora_A, lora_B, lora_alpha):
    low = lora_B.to(weight.dtype) @ lora_A.to(weight.dtype)
    return weight + lora_alpha / lora_A.shape[0] * low


@wrong("merge_weight", "Your code raised RuntimeError")
def a_times_b(weight, lora_A, lora_B, lora_alpha):
    return (weight.float() + lora_alpha / lora_A.shape[0] * lora_A @ lora_B).to(weight.dtype)


@wrong("merge_weight", "subtracted")
def takes_away(weight, lora_A, lora_B, lora_alpha):
    return (weight.float() - lora_alpha / lora_A.shape[0] * lora_B @ lora_A).to(weight.dtype)


@wrong("merge_weight", "added twice")
def adds_twice(weight, lora_A, lora_B, lora_alpha):
    update = lora_alpha / lora_A.shape[0] * lora_B @ lora_A
    return (weight.float() + update + update).to(weight.dtype)


@wrong("merge_weight", "comes back in float32")
def merges_into_float32(weight, lora_A, lora_B, lora_alpha):
    return weight.float() + lora_alpha / lora_A.shape[0] * lora_B @ lora_A


@wrong("merge_weight", "changes its argument")
def in_place(weight, lora_A, lora_B, lora_alpha):
    return weight.add_((lora_alpha / lora_A.shape[0] * lora_B @ lora_A).to(weight.dtype))


@wrong("merge_weight", "update alone")
def delta(weight, lora_A, lora_B, lora_alpha):
    return (lora_alpha / lora_A.shape[0] * lora_B @ lora_A).to(weight.dtype)


@wrong("merge_weight", "width of the output")
def divides_by_the_rows_of_b(weight, lora_A, lora_B, lora_alpha):
    return (weight.float() + lora_alpha / len(lora_B) * lora_B @ lora_A).to(weight.dtype)


# 8 LoRALinear


@right("lora_linear")
class WithTwoLinears(nn.Module):
    """A and B are parameters of the module; the update is computed on the whole matrix."""

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

    freeze = True
    bias = True
    scale = True
    drop_base = False
    drop_always = False
    keep_share = True
    check_merged = True
    merge_once = True
    remembers = True

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

    def forward(self, x):
        dropped = self.drop(x)
        source = dropped if self.drop_base else x
        out = self.base_layer(source) if self.bias else source @ self.base_layer.weight.T
        if self.merged and self.check_merged:
            return out
        update = self.behind(
            F.linear(self.between(F.linear(dropped.float(), self.lora_A)), self.lora_B)
        )
        return (out + self.scaling * update).to(out.dtype)

    def between(self, x):
        return x

    def behind(self, x):
        return x

    def merge(self):
        if self.merged and self.merge_once:
            return
        self.base_layer.weight.data += self.scaling * (self.lora_B @ self.lora_A).detach()
        self.merged = self.remembers


@wrong("lora_linear", "base layer is not frozen", "base_layer.")
class BaseTrained(Good):
    freeze = False


@wrong("lora_linear", "bias of the base layer is lost")
class WithoutBias(Good):
    bias = False


@wrong("lora_linear", "not scaled")
class Unscaled(Good):
    scale = False


@wrong("lora_linear", "base layer* are dropped")
class DropsEverything(Good):
    drop_base = True


@wrong("lora_linear", "base layer* are dropped")
class DropsOnceForBoth(Good):
    def forward(self, x):
        return super().forward(self.drop(x))

    def drop(self, x):
        return F.dropout(x, self.p, self.training)


@wrong("lora_linear", "between A and B")
class DropsBetween(Good):
    def drop(self, x):
        return x

    def between(self, x):
        return F.dropout(x, self.p, self.training)


@wrong("lora_linear", "behind B")
class DropsTheUpdate(Good):
    def drop(self, x):
        return x

    def behind(self, x):
        return F.dropout(x, self.p, self.training)


@wrong("lora_linear", "output is float32", "type of the base layer")
class StaysInFloat32(Good):
    def forward(self, x):
        out = self.base_layer(x)
        if self.merged:
            return out
        update = F.linear(F.linear(self.drop(x).float(), self.lora_A), self.lora_B)
        return out + self.scaling * update


@wrong("lora_linear", "`layer.merged` is False after")
class ForgetsThatItMerged(Good):
    remembers = False


@wrong("lora_linear", "no attribute `merged`")
class WithoutAFlag(Good):
    def __init__(self, *args):
        super().__init__(*args)
        del self.merged


@wrong("lora_linear", "dropped in evaluation")
class DropsInEvaluation(Good):
    drop_always = True


@wrong("lora_linear", "not scaled up")
class DropsWithoutScaling(Good):
    keep_share = False


@wrong("lora_linear", "added once more")
class AddsAfterMerging(Good):
    check_merged = False


@wrong("lora_linear", "second time")
class MergesTwice(Good):
    merge_once = False


@wrong("lora_linear", "no trained parameter")
class TensorsInsteadOfParameters(Good):
    def __init__(self, *args):
        super().__init__(*args)
        A, B = self.lora_A.data, self.lora_B.data
        del self.lora_A, self.lora_B
        self.lora_A, self.lora_B = A.requires_grad_(), B.requires_grad_()


@wrong("lora_linear", "not the layer that was given")
class CopiesTheBase(Good):
    def __init__(self, base_layer, *args):
        super().__init__(base_layer, *args)
        twin = nn.Linear(base_layer.in_features, base_layer.out_features)
        twin.load_state_dict(base_layer.state_dict())
        self.base_layer = twin.requires_grad_(False)


@wrong("lora_linear", "must pass through the frozen weight")
class FreezesWithNoGrad(Good):
    def forward(self, x):
        with torch.no_grad():
            out = self.base_layer(x)
        if self.merged:
            return out
        return out + self.scaling * F.linear(F.linear(self.drop(x), self.lora_A), self.lora_B)


@wrong("lora_linear", "does not give what its base layer gives")
class StartsDamaged(Good):
    def __init__(self, *args):
        super().__init__(*args)
        nn.init.normal_(self.lora_B)


@wrong("lora_linear", "what it was")
class MergesACopy(Good):
    def merge(self):
        weight = self.base_layer.weight.data.clone()
        weight += self.scaling * (self.lora_B @ self.lora_A).detach()
        self.merged = True


@wrong("lora_linear", "no longer frozen")
class MergesIntoANewParameter(Good):
    def merge(self):
        if not self.merged:
            update = self.scaling * (self.lora_B @ self.lora_A).detach()
            self.base_layer.weight = nn.Parameter(self.base_layer.weight + update)
            self.merged = True


@wrong("lora_linear", "Nothing is dropped")
class ForgetsDropout(Good):
    def drop(self, x):
        return x


@wrong("lora_linear", "update is never added")
class MergedFromTheStart(Good):
    def __init__(self, *args):
        super().__init__(*args)
        self.merged = True


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


def replace(model, fits, make):
    for name, layer in list(model.named_modules()):
        parent, _, child = name.rpartition(".")
        if isinstance(layer, nn.Linear) and fits(name, child):
            setattr(model.get_submodule(parent), child, make(layer))


@wrong("add_lora", "Not everything else is frozen")
def freezes_only_the_targets(model, target_modules, r, lora_alpha):
    replace(model, lambda _, child: child in target_modules, lambda x: Good(x, r, lora_alpha))
    return trained_of(model)


@wrong("add_lora", "frozen, too, so nothing is trained")
def freezes_last(model, target_modules, r, lora_alpha):
    replace(model, lambda _, child: child in target_modules, lambda x: Good(x, r, lora_alpha))
    trained = trained_of(model)
    model.requires_grad_(False)
    return trained


@wrong("add_lora", "not named in target_modules")
def part_of_the_name(model, target_modules, r, lora_alpha):
    model.requires_grad_(False)
    fits = lambda name, _: any(target in name for target in target_modules)  # noqa: E731
    replace(model, fits, lambda x: Good(x, r, lora_alpha))
    return trained_of(model)


@wrong("add_lora", "not named in target_modules")
def end_of_the_name(model, target_modules, r, lora_alpha):
    model.requires_grad_(False)
    replace(model, lambda n, _: n.endswith(tuple(target_modules)), lambda x: Good(x, r, lora_alpha))
    return trained_of(model)


@wrong("add_lora", "not named in target_modules")
def every_linear_layer(model, target_modules, r, lora_alpha):
    model.requires_grad_(False)
    replace(model, lambda *_: True, lambda x: Good(x, r, lora_alpha))
    return trained_of(model)


@wrong("add_lora", "No layer of the model was replaced")
def assigns_to_the_loop_variable(model, target_modules, r, lora_alpha):
    model.requires_grad_(False)
    for name, layer in model.named_modules():
        if isinstance(layer, nn.Linear) and name.rpartition(".")[2] in target_modules:
            layer = Good(layer, r, lora_alpha)
    return trained_of(model)


@wrong("add_lora", "No layer of the model was replaced")
def compares_the_whole_name(model, target_modules, r, lora_alpha):
    model.requires_grad_(False)
    replace(model, lambda name, _: name in target_modules, lambda x: Good(x, r, lora_alpha))
    return trained_of(model)


@wrong("add_lora", "Only one layer")
def stops_after_the_first(model, target_modules, r, lora_alpha):
    model.requires_grad_(False)
    done = []
    fits = lambda _, child: child in target_modules and not done  # noqa: E731
    replace(model, fits, lambda x: done.append(1) or Good(x, r, lora_alpha))
    return trained_of(model)


@wrong("add_lora", "Some layers were not adapted")
def first_target_alone(model, target_modules, r, lora_alpha):
    model.requires_grad_(False)
    replace(model, lambda _, child: child == target_modules[0], lambda x: Good(x, r, lora_alpha))
    return trained_of(model)


@wrong("add_lora", "swapped")
def swaps_r_and_alpha(model, target_modules, r, lora_alpha):
    return by_parents(model, target_modules, lora_alpha, r)


@wrong("add_lora", "logits are wrong")
def forgets_alpha(model, target_modules, r, lora_alpha):
    return by_parents(model, target_modules, r, r)


@wrong("add_lora", "also holds frozen parameters")
def returns_everything(model, target_modules, r, lora_alpha):
    by_parents(model, target_modules, r, lora_alpha)
    return list(model.parameters())


@wrong("add_lora", "must return the list")
def returns_the_model(model, target_modules, r, lora_alpha):
    by_parents(model, target_modules, r, lora_alpha)
    return model


@wrong("add_lora", "not that of all A and B")
def returns_b_alone(model, target_modules, r, lora_alpha):
    by_parents(model, target_modules, r, lora_alpha)
    return [p for name, p in model.named_parameters() if "lora_B" in name]


@wrong("add_lora", "share their A and B")
def one_pair_for_all(model, target_modules, r, lora_alpha):
    by_parents(model, target_modules, r, lora_alpha)
    pairs = {}
    for layer in model.modules():
        if isinstance(layer, Good):
            first = pairs.setdefault(layer.lora_B.shape, layer)
            layer.lora_A, layer.lora_B = first.lora_A, first.lora_B
    return trained_of(model)


@wrong("add_lora", "has no attribute 'in_features'")
def whatever_has_the_name(model, target_modules, r, lora_alpha):
    model.requires_grad_(False)
    for name, layer in list(model.named_modules()):
        parent, _, child = name.rpartition(".")
        if child in target_modules:
            setattr(model.get_submodule(parent), child, Good(layer, r, lora_alpha))
    return trained_of(model)


@wrong("add_lora", "another layer's weight")
def one_layer_for_each_name(model, target_modules, r, lora_alpha):
    model.requires_grad_(False)
    made = {}
    for name, layer in list(model.named_modules()):
        parent, _, child = name.rpartition(".")
        if isinstance(layer, nn.Linear) and child in target_modules:
            new = made.setdefault(child, Good(layer, r, lora_alpha))
            setattr(model.get_submodule(parent), child, new)
    return trained_of(model)


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


@wrong("training_step", "never set to zero")
def gradients_add_up(model, trained, optimizer, input_ids, labels):
    loss = loss_of(model, input_ids, labels)
    loss.backward()
    nn.utils.clip_grad_norm_(trained, 1.0)
    optimizer.step()
    return loss.item()


@wrong("training_step", "weights do not move")
def zeroes_too_late(model, trained, optimizer, input_ids, labels):
    loss = loss_of(model, input_ids, labels)
    loss.backward()
    nn.utils.clip_grad_norm_(trained, 1.0)
    optimizer.zero_grad()
    optimizer.step()
    return loss.item()


@wrong("training_step", "weights do not move")
def never_steps(model, trained, optimizer, input_ids, labels):
    optimizer.zero_grad()
    loss = loss_of(model, input_ids, labels)
    loss.backward()
    nn.utils.clip_grad_norm_(trained, 1.0)
    return loss.item()


@wrong("training_step", "not clipped before the step")
def no_clipping(model, trained, optimizer, input_ids, labels):
    optimizer.zero_grad()
    loss = loss_of(model, input_ids, labels)
    loss.backward()
    optimizer.step()
    return loss.item()


@wrong("training_step", "not clipped before the step")
def clips_too_late(model, trained, optimizer, input_ids, labels):
    optimizer.zero_grad()
    loss = loss_of(model, input_ids, labels)
    loss.backward()
    optimizer.step()
    nn.utils.clip_grad_norm_(trained, 1.0)
    return loss.item()


@wrong("training_step", "Each parameter is clipped by itself")
def clips_each(model, trained, optimizer, input_ids, labels):
    optimizer.zero_grad()
    loss = loss_of(model, input_ids, labels)
    loss.backward()
    for parameter in trained:
        nn.utils.clip_grad_norm_(parameter, 1.0)
    optimizer.step()
    return loss.item()


@wrong("training_step", "Each number is clipped")
def clips_values(model, trained, optimizer, input_ids, labels):
    optimizer.zero_grad()
    loss = loss_of(model, input_ids, labels)
    loss.backward()
    nn.utils.clip_grad_value_(trained, 1.0)
    optimizer.step()
    return loss.item()


@wrong("training_step", "return a tensor")
def keeps_the_graph(model, trained, optimizer, input_ids, labels):
    optimizer.zero_grad()
    loss = loss_of(model, input_ids, labels)
    loss.backward()
    nn.utils.clip_grad_norm_(trained, 1.0)
    optimizer.step()
    return loss


@wrong("training_step", "loss after the step")
def measures_again(model, trained, optimizer, input_ids, labels):
    zeroes_at_the_end(model, trained, optimizer, input_ids, labels)
    return loss_of(model, input_ids, labels).item()


@wrong("training_step", "weights move twice")
def steps_twice(model, trained, optimizer, input_ids, labels):
    optimizer.zero_grad()
    loss = loss_of(model, input_ids, labels)
    loss.backward()
    nn.utils.clip_grad_norm_(trained, 1.0)
    optimizer.step()
    optimizer.step()
    return loss.item()


@wrong("training_step", "scaled *up*")
def always_length_one(model, trained, optimizer, input_ids, labels):
    optimizer.zero_grad()
    loss = loss_of(model, input_ids, labels)
    loss.backward()
    norm = torch.stack([p.grad.norm() for p in trained]).norm()
    for p in trained:
        p.grad /= norm
    optimizer.step()
    return loss.item()


@wrong("training_step", "first loss is wrong already")
def another_loss(model, trained, optimizer, input_ids, labels):
    optimizer.zero_grad()
    logits = model(input_ids)
    loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)
    loss.backward()
    nn.utils.clip_grad_norm_(trained, 1.0)
    optimizer.step()
    return loss.item()


# 11 engine


@right("engine")
def other_parts():
    return masks_afterwards, by_parents, zeroes_at_the_end


@wrong("engine", "The course's own layer")
def course_parts():
    return masks_afterwards, the_courses_own, zeroes_at_the_end


@wrong("engine", "must return make_labels, add_lora and training_step")
def too_few_parts():
    return masks_afterwards, by_parents


@wrong("engine", "adapts no layer")
def parts_without_layers():
    return masks_afterwards, assigns_to_the_loop_variable, zeroes_at_the_end


@wrong("engine", "loss does not fall")
def parts_that_never_step():
    return masks_afterwards, by_parents, never_steps


class MergesUnscaled(Good):
    def merge(self):
        self.base_layer.weight.data += (self.lora_B @ self.lora_A).detach()
        self.merged = True


@wrong("engine", "Merging changes the model's logits")
def parts_that_merge_unscaled():
    def add(model, target_modules, r, lora_alpha):
        model.requires_grad_(False)
        fits = lambda _, child: child in target_modules  # noqa: E731
        replace(model, fits, lambda x: MergesUnscaled(x, r, lora_alpha))
        return trained_of(model)

    return masks_afterwards, add, zeroes_at_the_end
