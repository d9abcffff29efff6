# SPDX-License-Identifier: LGPL-3.0-or-later
# shellcheck shell=bash
# Completion of millrace in bash: the command itself says what may follow.

_millrace() {
    local line=${COMP_LINE:0:COMP_POINT}
    local -a words answer

    read -ra words <<<"$line"
    [[ $line != *[[:space:]] ]] || words+=("")
    mapfile -t answer < <("$1" --complete "${words[@]:1}" 2>/dev/null)
    COMPREPLY=("${answer[@]}")
    case ${answer[0]-} in
    :*) mapfile -t COMPREPLY < <(compgen -A "${answer[0]#:}" -- "$2") ;;
    *[=/]) compopt -o nospace ;;
    esac
    [[ ${answer[0]-} != :@(file|directory) ]] || compopt -o filenames
}

complete -F _millrace millrace
