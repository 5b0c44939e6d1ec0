/* Messages between the ranks of different hosts (wire.c). */
#ifndef COLLECTIVES_WIRE_H
#define COLLECTIVES_WIRE_H

#include "../mail/mail.h"
#include "ucp.h"

/* The TCP ports at which the ranks of this job listen for UCX. */
extern uint8_t cc_wire_ports[1 << 16];

/* Give a mail a worker of UCX. Return NULL, or the name of the failed call, with its status. */
const char *cc_wire_open(cc_mail *mail, cc_ucs_status *status);
/* Make the kernel end UCX's connections whose other end does not answer: UCX asks for this on one end
 * only, and not while data are in flight. It does not expose its sockets, so they are found by their
 * ports. */
void cc_wire_watch(void);
/* Tell all peers that this rank ends, and wait until its messages are on their way, for some seconds at
 * most. Nothing is sent afterwards. */
void cc_wire_leave(cc_mail *mail, double seconds);

/* For the mail, which holds its lock. */
struct cc_early;
/* Return whether there is an endpoint for a peer, made if necessary. */
int cc_wire_connect(cc_peer *peer);
void cc_wire_send(cc_letter *letter);
/* Give a receive a message that came before it. */
void cc_wire_give_early(cc_letter *letter, struct cc_early *early);
/* End the letters that wait for a peer, which sends nothing any more. */
void cc_wire_ends(cc_peer *peer);
void cc_wire_close(cc_mail *mail);

#endif
