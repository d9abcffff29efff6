/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* The log of the layers below, in ganesha's. */
#include "export/internal.h"

/* Those of syslog.h, which comes with ganesha's headers. */
#undef LOG_WARNING
#undef LOG_NOTICE
#include "common/log.h"

static void sink(enum log_level level, const char *line)
{
	switch (level) {
	case LOG_ERROR:
		LogCrit(COMPONENT_FSAL, "%s", line);
		break;
	case LOG_WARNING:
		LogWarn(COMPONENT_FSAL, "%s", line);
		break;
	case LOG_NOTICE:
		LogEvent(COMPONENT_FSAL, "%s", line);
		break;
	case LOG_TRACE:
		LogDebug(COMPONENT_FSAL, "%s", line);
		break;
	}
}

void log_start(void)
{
	log_set_sink(sink);
}
