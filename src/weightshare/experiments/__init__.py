"""The paper's experiments: data, models, recipes, runs; and what is made of them."""
