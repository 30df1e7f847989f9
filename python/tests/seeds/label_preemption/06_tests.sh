pytest tests/integration/test_label_preemption.py -v
