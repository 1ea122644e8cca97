# SPDX-License-Identifier: Apache-2.0
"""BMv2's Thrift services, for the control planes that speak them."""
