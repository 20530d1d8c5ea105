"""Behind results/castor-predictor.md: the nested study and its pictures."""
