/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Room for stores in the scratch file system.
 *
 * A file system without room answers a write to a map with SIGBUS. So nothing of a store's file is
 * written that the file system has not set aside before: `backed` pages from its start. Each change
 * sees to it, before LMDB hears of it, that this covers what the transaction may take with it, its
 * commit included (room_needed()); where it cannot, the transaction has its error and is abandoned.
 *
 * What a transaction may take is counted in pages behind those that the file had when it began, as
 * if LMDB found none that are free among these:
 *
 *   copies    a page of the tree is copied when it is changed first. A change goes down one path
 *             and, deleting, may turn to one neighbour a level; no transaction copies more leaves,
 *             or more branches, than the tree had when it began.
 *   growth    pages by which the tree has grown, at its largest (which LMDB tells): one that left
 *             the tree within the transaction is used again before the file grows. And what the
 *             change to come may split: putting, a page a level and a new root; deleting, the same
 *             for two keys above each level whose pages are evened out.
 *   values    too large for a page of the tree, each has pages of its own.
 *   roots     one that a deletion makes superfluous is not used again: as many as the tree had
 *             levels, and those that it was given since.
 *   commit    the table of free pages: its own tree, copied and evened out; and the lists of pages
 *             to come, which may name each page of the file once, written a few times over, as the
 *             writing itself frees pages.
 *
 * The steps in which the file is backed grow with it, from 256 KiB on, so that a thousand small
 * volumes cost little.
 *
 * What leaves room for deleting. Whoever begins a transaction that may make an environment larger
 * asks for some pages more than there are (store_is_short()); these steps leave a margin in
 * the file system which only changes that have begun may use, and transactions that do not make
 * anything larger.
 */
#include "pool/env.h"

#include <fcntl.h>
#include <sys/statvfs.h>

#define STEP_MIN 64u /* pages */
#define STEP_MAX 4096u
#define STEP_PART 8u /* of the file */
#define MARGIN_MAX (64ull << 20) /* bytes */
#define MARGIN_PART 16u /* of the file system */
#define INLINE_MAX (STORE_PAGE / 2 - 64) /* key and value that surely stand in the tree's pages */
#define PAGE_HEAD 16u
#define LIST_IDS 500u /* of free pages, in one page */
#define LIST_COPIES 6u
#define COMMIT_PAGES 16u /* splits in the table of free pages */
#define FREE_TABLE 0u /* LMDB's own */

/* --- set aside ------------------------------------------------------------------------------- */

static int set_aside(int file, uint64_t from, uint64_t to)
{
	int rc;

	do {
		rc = posix_fallocate(file, (off_t)from, (off_t)(to - from));
	} while (rc == EINTR);
	return rc;
}

/* Behind the map LMDB itself says that there is no room. */
static int back(struct store *store, uint64_t pages)
{
	uint64_t most = store->map_size / STORE_PAGE;
	int file, rc;

	if (pages > most)
		pages = most;
	if (pages <= store->backed)
		return 0;
	rc = mdb_env_get_fd(store->mdb, &file);
	if (!rc)
		rc = set_aside(file, store->backed * STORE_PAGE, pages * STORE_PAGE);
	if (!rc)
		store->backed = pages;
	return rc;
}

static uint64_t step(uint64_t pages)
{
	uint64_t part = pages / STEP_PART;

	return part < STEP_MIN ? STEP_MIN : part > STEP_MAX ? STEP_MAX : part;
}

static bool margin_left(struct store *store, uint64_t pages)
{
	struct statvfs status;
	uint64_t margin;
	int file;

	if (mdb_env_get_fd(store->mdb, &file) || fstatvfs(file, &status))
		return false;
	margin = (uint64_t)status.f_blocks * status.f_frsize / MARGIN_PART;
	if (margin > MARGIN_MAX)
		margin = MARGIN_MAX;
	return (uint64_t)status.f_bavail * status.f_frsize >= margin + pages * STORE_PAGE;
}

bool store_is_short(struct store *store, uint64_t ahead)
{
	uint64_t wanted = store->room.pages + ahead;

	if (wanted <= store->backed)
		return false;
	wanted += step(wanted);
	return !margin_left(store, wanted - store->backed) || back(store, wanted);
}

int store_back_locks(struct store *store, uint64_t bytes)
{
	int rc;

	if (bytes <= store->locks_backed)
		return 0;
	bytes = (bytes + STORE_PAGE - 1) / STORE_PAGE * STORE_PAGE;
	rc = set_aside(store->locks, store->locks_backed, bytes);
	if (!rc)
		store->locks_backed = bytes;
	return rc;
}

/* --- what a transaction may take --------------------------------------------------------------
 */

static uint64_t tree_pages(const MDB_stat *stat)
{
	return stat->ms_branch_pages + stat->ms_leaf_pages;
}

int store_room_begin(struct store *store, MDB_txn *txn)
{
	MDB_envinfo info;
	MDB_stat tree, table;
	int rc = mdb_env_info(store->mdb, &info);

	if (!rc)
		rc = mdb_stat(txn, store->dbi, &tree);
	if (!rc)
		rc = mdb_stat(txn, FREE_TABLE, &table);
	if (!rc)
		store->room = (struct store_room){.pages = info.me_last_pgno + 1,
			.leaves = tree.ms_leaf_pages,
			.branches = tree.ms_branch_pages,
			.table = tree_pages(&table),
			.levels = tree.ms_depth,
			.roots = tree.ms_depth};
	return rc;
}

/* Of one change to a tree of so many levels. */
static uint64_t splits_of_change(unsigned levels)
{
	return (uint64_t)(levels + 1) * (levels + 2);
}

static uint64_t pages_of_value(size_t key, size_t value)
{
	return key + value <= INLINE_MAX ? 0 : (PAGE_HEAD + value + STORE_PAGE - 1) / STORE_PAGE;
}

static uint64_t least(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

uint64_t store_room_needed(const struct store_room *room, uint64_t splits)
{
	uint64_t pages = room->pages + least(room->leaf_copies, room->leaves) +
			 least(room->branch_copies, room->branches) + room->growth + splits +
			 room->values + room->roots;

	return pages + 2 * room->table + LIST_COPIES * (pages / LIST_IDS + 1) + COMMIT_PAGES;
}

/* With a step, or without where there is no room for one. */
static int back_needed(struct store *store, uint64_t splits)
{
	uint64_t needed = store_room_needed(&store->room, splits);

	if (needed <= store->backed || !back(store, needed + step(needed)))
		return 0;
	return back(store, needed);
}

/* What the changes before have made of the tree. */
static void look_at_tree(struct store_room *room, const MDB_stat *tree)
{
	uint64_t before = room->leaves + room->branches, now = tree_pages(tree);

	if (now > before + room->growth)
		room->growth = now - before;
	if (tree->ms_depth > room->levels)
		room->roots += tree->ms_depth - room->levels;
	room->levels = tree->ms_depth;
}

/* `paths`: down which the change may go. */
static int room_for_change(struct store *store, MDB_txn *txn, unsigned paths)
{
	struct store_room *room = &store->room;
	MDB_stat tree;
	int rc = mdb_stat(txn, store->dbi, &tree);

	if (rc)
		return rc;
	look_at_tree(room, &tree);
	room->leaf_copies += paths;
	room->branch_copies += room->levels ? paths * (room->levels - 1) : 0;
	return back_needed(store, splits_of_change(room->levels));
}

int store_room_to_put(struct store *store, MDB_txn *txn, size_t key, size_t value)
{
	store->room.values += pages_of_value(key, value);
	return room_for_change(store, txn, 1);
}

int store_room_to_delete(struct store *store, MDB_txn *txn)
{
	return room_for_change(store, txn, 2);
}

int store_room_to_empty(struct store *store)
{
	return back_needed(store, 0);
}
