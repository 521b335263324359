"""Small models that pipeline splitters have got wrong, and the models the project names."""
