"""Commands for who plans a training: plan, rehearse, scale, site measure."""
