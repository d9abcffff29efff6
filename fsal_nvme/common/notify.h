/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* Telling the service manager how a process is, as sd_notify(3) does. */
#ifndef MILLRACE_NOTIFY_H
#define MILLRACE_NOTIFY_H

/* Sends `state`, such as "READY=1", to the socket that $NOTIFY_SOCKET names. Nothing happens where
 * there is none: nobody has asked. */
void notify_manager(const char *state);

#endif
