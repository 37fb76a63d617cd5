"""Rules select what they say, and say what is wrong."""

import pytest
import torch
from torch import nn

from weightshare.training import Rule, WeightSharing
from weightshare.training.names import named_parameters


def net():
    return nn.ModuleDict(
        {
            "fc1": nn.Linear(4, 4),
            "encoder": nn.Sequential(nn.Conv1d(4, 4, 3), nn.BatchNorm1d(4), nn.Linear(4, 4)),
            "embed": nn.Embedding(5, 4),
            "head": nn.ConvTranspose2d(4, 4, 2),
        }
    )


def attach(rules=None, model=None, **settings):
    model = model or net()
    sharing = WeightSharing(model, torch.optim.SGD(model.parameters(), lr=0.1), rules, **settings)
    return [[u.name for u in sharing.units if u.rule is rule] for rule in sharing.rules]


def test_shorthand_takes_linear_and_conv_weights():
    assert attach(alpha=1e-3) == [["fc1.weight", "encoder.0.weight", "encoder.2.weight", "head.weight"]]


@pytest.mark.parametrize(
    ("select", "names"),
    [
        ("fc1.bias", ["fc1.bias"]),
        ("encoder.*.weight", ["encoder.0.weight", "encoder.1.weight", "encoder.2.weight"]),
        (
            r"re:encoder\.[02]\..*",
            ["encoder.0.weight", "encoder.0.bias", "encoder.2.weight", "encoder.2.bias"],
        ),
        (nn.Embedding, ["embed.weight"]),
        ([nn.BatchNorm1d, "fc1.*"], ["encoder.1.weight", "fc1.weight", "fc1.bias"]),
    ],
)
def test_selects(select, names):
    assert sorted(attach(Rule(select, alpha=1e-3))[0]) == sorted(names)


def test_names_win_over_types():
    rules = [
        Rule("fc1.weight", alpha=1.0),
        Rule(nn.Linear, alpha=0.1),
        Rule(["head.*"], alpha=0.1, per="group"),
    ]
    assert attach(rules) == [["fc1.weight"], ["encoder.2.weight"], ["head.weight + head.bias"]]


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ([Rule("fc1.wieght", alpha=1)], r"did you mean 'fc1\.weight'.* names are: fc1\.weight, fc1\.bias"),
        ([Rule("decoder.*", alpha=1)], "'decoder.*' matches no parameter.* names are"),
        ([Rule(nn.LSTM, alpha=1)], "LSTM matches no weight.*BatchNorm1d, Conv1d"),
        ([Rule("fc1.weight", alpha=1), Rule("fc1.*", alpha=1)], r"'fc1\.weight' is in two rules"),
        ([Rule(nn.Linear, alpha=1), Rule(nn.Module, alpha=1)], "is in two rules"),
        ([Rule("*.weight", alpha=1), Rule(nn.Linear, alpha=1)], "taken by a rule that names it"),
        ([Rule("fc1.bias", alpha=1, per="row")], r"'fc1\.bias' has shape \(4,\).*per=\"tensor\""),
        ([], "one or more Rule"),
    ],
)
def test_bad_rules_raise_and_attach_nothing(rules, message):
    model = net()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises((ValueError, TypeError), match=message):
        WeightSharing(model, opt, rules)
    assert not opt._optimizer_step_post_hooks


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "does nothing"),
        ({"alpha": -1.0}, "alpha must be"),
        ({"alpha": 1.0, "rho": 1.5}, "rho must be"),
        ({"alpha": 1.0, "per": "rows"}, "did you mean 'row'"),
        ({"alpha": 1.0, "per": 1}, "at least 2"),
        ({"alpha": 1.0, "coupling": "loose"}, "coupling"),
        ({"alpha": 1.0, "schedule": 3}, "schedule must be callable"),
        ({"target_bits": 3.0, "target_zeros": 0.5}, "one target"),
        ({"target_zeros": 1.5}, "target_zeros must be in"),
        ({"target_distinct": 0}, "target_distinct must be a whole number >= 1"),
        ({"target_bits": 3.0, "tolerance": 0.0}, "tolerance"),
        ({"target_bits": 3.0, "tolerance": "wide"}, "tolerance must be a number, got 'wide'"),
        ({"target_bits": "3"}, "target_bits must be a number, got '3'"),
        ({"target_distinct": 2.5}, "target_distinct must be a whole number, got 2.5"),
        ({"method": "l1"}, "method must be one of weightshare.baselines.*'l1'"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises((ValueError, TypeError), match=message):
        attach(Rule("fc1.weight", **arguments))


def test_selectors_are_checked():
    for bad in ("re:(", 3, [], [int]):
        with pytest.raises((ValueError, TypeError)):
            Rule(bad, alpha=1.0)


def test_rules_and_shorthand_exclude_each_other():
    with pytest.raises(ValueError, match="not both"):
        attach(Rule("fc1.weight", alpha=1.0), alpha=1.0)


def test_parameters_of_another_optimizer():
    model = net()
    opt = torch.optim.SGD(model["fc1"].parameters(), lr=0.1)
    assert [u.name for u in WeightSharing(model, opt, Rule(nn.Linear, alpha=1.0)).units] == ["fc1.weight"]
    with pytest.raises(ValueError, match=r"'head\.weight' is not among the parameters of this optimizer"):
        WeightSharing(model, opt, Rule("head.weight", alpha=1.0))
    with pytest.raises(ValueError, match="not among"):
        WeightSharing(model, opt, Rule(nn.Embedding, alpha=1.0))


def test_nothing_to_share():
    model = nn.Sequential(nn.BatchNorm1d(4))
    with pytest.raises(ValueError, match=r"no weight of a Linear.*0\.weight, 0\.bias"):
        attach(model=model, alpha=1.0)


def test_parametrized_weights_are_refused():
    model = nn.Sequential(torch.nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)))
    with pytest.raises(ValueError, match="computed by a parametrisation"):
        attach(model=model, alpha=1.0)


def test_weights_computed_by_hooks_are_refused():
    from torch.nn.utils import prune, spectral_norm, weight_norm

    for wrap in (weight_norm, spectral_norm, lambda layer: prune.random_unstructured(layer, "weight", 0.5)):
        model = nn.Sequential(wrap(nn.Linear(4, 4)), nn.Linear(4, 4))
        with pytest.raises(ValueError, match="the weight of '0' is computed"):
            attach(model=model, alpha=1.0)
        assert attach(Rule("1.weight", alpha=1.0), model)


def test_lazy_parameters_are_refused():
    with pytest.raises(ValueError, match="run a batch"):
        attach(model=nn.LazyLinear(4), alpha=1.0)


def test_names_of_wrapped_models():
    model = nn.Sequential(torch.compile(nn.Linear(2, 2)), nn.DataParallel(nn.Linear(2, 2)))
    wrapped = torch.compile(model)
    names = ["0.weight", "0.bias", "1.weight", "1.bias"]
    assert [p.name for p in named_parameters(model)] == names
    assert [p.name for p in named_parameters(wrapped)] == names


def test_a_second_sharing_of_the_same_weights_is_refused():
    model = net()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    first = WeightSharing(model, opt, Rule("fc1.weight", alpha=1.0))
    WeightSharing(model, opt, Rule("head.weight", alpha=1.0))
    with pytest.raises(ValueError, match=r"'fc1\.weight' is shared already"):
        WeightSharing(model, opt, alpha=1.0)
    first.remove()
    WeightSharing(model, opt, Rule("fc1.weight", alpha=1.0))


def test_rule_repr():
    rule = Rule([nn.Linear, "a.*"], alpha=1e-3, per="row")
    assert repr(rule) == "Rule([Linear, 'a.*'], alpha=0.001, per='row')"
