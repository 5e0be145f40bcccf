from hypothesis import HealthCheck, settings

# A loaded machine is no failed test.
settings.register_profile("sluiceway", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("sluiceway")
