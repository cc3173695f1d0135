"""The paper's image classification: networks, data sets, recipes, training, studies and reports."""
