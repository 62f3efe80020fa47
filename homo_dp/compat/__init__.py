"""Words of other systems: their files, overrides and names of keys, translated into ours."""
