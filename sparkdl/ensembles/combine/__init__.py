"""How the members' predictions become the ensemble's."""
