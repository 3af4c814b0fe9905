"""The claims of the papers as data: what each says, the rule over our results that judges it, and the verdict."""
