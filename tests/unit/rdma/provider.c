/* SPDX-License-Identifier: MIT */
/* Stands for a provider in verbs_provider_test: it is loaded, or it is not. */
extern const int provider_of_a_test;
__attribute__((visibility("default"))) const int provider_of_a_test = 1;
