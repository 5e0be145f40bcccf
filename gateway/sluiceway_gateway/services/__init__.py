"""Use cases: verbs on the domain's nouns, each in one transaction."""
