/* SPDX-License-Identifier: MIT */
/* A program that does nothing: what is left of its run is the cost of starting and ending a process. */
int main(void)
{
	return 0;
}
