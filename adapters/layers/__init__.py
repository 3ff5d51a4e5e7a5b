"""The layers that heads are made of. Parameters have a leading dimension of trials that train together."""
