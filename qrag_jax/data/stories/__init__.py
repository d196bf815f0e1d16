"""Questions over facts: bAbI, simulated worlds, and the haystacks that hide them."""
