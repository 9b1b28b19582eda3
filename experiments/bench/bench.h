/* SPDX-License-Identifier: MIT */
/* What the small measuring programs share: numbers from arguments, failure in words, a TCP connection to oneself. */
#ifndef ZC_EXPERIMENTS_BENCH_H
#define ZC_EXPERIMENTS_BENCH_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* Returns the number written in `text`, or ends the program with status 2, naming what it is for and what is allowed. */
uint64_t bench_number(const char *what, const char *text, uint64_t min, uint64_t max);

/* Ends the program with status 1, saying what failed and why (errno). */
void bench_fail(const char *what) __attribute__((noreturn));

/* Returns page-aligned memory, all of it present. */
void *bench_memory(uint64_t bytes);

/*
 * Starts a process that receives, and sends a byte back after each `bytes` bytes. It is made before the connection exists, so that no
 * socket is shared with it. Returns the connected socket.
 */
int bench_receiver_start(uint64_t bytes, pid_t *receiver);

/* Closes the connection and waits for the receiver's end. */
void bench_receiver_end(int fd, pid_t receiver);

/* Makes both ends of a TCP connection over loopback. */
void bench_tcp_pair(int *client, int *server);

/* Listens on loopback at a free port. Returns the socket; *port gets the port. */
int bench_listen(uint16_t *port);

/* Connects to a port of loopback. */
int bench_connect(uint16_t port);

/* Sends all bytes, or ends the program. */
void bench_send_all(int fd, const void *bytes, uint64_t count);

/* Receives all bytes. Returns false at the end of the stream. */
bool bench_receive_all(int fd, void *bytes, uint64_t count);

/* Sorts samples and returns their median. */
double bench_median(double *samples, uint64_t count);

#endif
