# SPDX-License-Identifier: Apache-2.0
"""NetReduce's questions: folds beside rings, trees and other papers' switches, alone and in training."""
