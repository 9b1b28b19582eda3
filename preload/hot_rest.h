/* SPDX-License-Identifier: MIT */
/*
 * How a thread sleeps in an epoll set whose hot connections have their peers on other hosts: they stay hot, and their devices'
 * descriptors are in a set of the library's own, which is polled beside the program's. For one thread of a set at a time, until a
 * second one has come to sleep there: what is not taken by the one has to wake the other, and only doorbells do that.
 */
#ifndef ZC_PRELOAD_HOT_REST_H
#define ZC_PRELOAD_HOT_REST_H

#include "preload/conn.h"

/* A part of the hot list, under its lock. */
struct hot_rest {
	int fd;	      /* the library's set; -1: none yet */
	bool crowded; /* several threads have slept there */
};

/* The connection is rested at, by this thread. Returns whether it is. */
bool hot_rest_begins(struct hot_rest *rest, struct conn *conn, struct watch *watch);

/* Ends it, if it is. */
void hot_rest_ends(struct conn *conn, struct watch *watch);

/* The set was readable: notes by what. */
void hot_rest_told(struct hot_rest *rest);

/* The registration leaves the hot list. */
void hot_rest_leaves(struct hot_rest *rest, struct watch *watch);

void hot_rest_close(struct hot_rest *rest);

#endif
