// Applies a redo log to a server that is being restored.
//
// A kill leaves an incomplete record at the end, which is no damage. Any other record that cannot
// be used is told, and left out as a whole:
//
//   - A push of rows or an edit is lost alone: the following ones are applied.
//   - Pushes of data tasks follow from each other: values and positions are of the last one. They
//     count up to the first that cannot be used, so that no record counts as trained whose gradient
//     is lost. Where the values of that moment are not in the file of values any more, none counts.
//     The records of the others are dealt out again.
//   - Records that name a description that is left out are left out too. Where a damaged record may
//     have been a description, the numbers of later ones are unknown: the log ends there.
//
// So the file is read twice: first to find the records that count, then to apply them.
#ifndef TFDIST_OPS_CORE_PS_STORE_LOG_REPLAY_H_
#define TFDIST_OPS_CORE_PS_STORE_LOG_REPLAY_H_

#include <cstdint>
#include <string>

#include "core/base/status.h"
#include "core/ps/store/redo_log.h"

namespace tfdist::ps {

// As RedoLog::Replay.
Status ReplayLog(const std::string& path, const RedoLog::Reader& reader, uint64_t* records,
                 uint64_t* left_out);

}  // namespace tfdist::ps

#endif  // TFDIST_OPS_CORE_PS_STORE_LOG_REPLAY_H_
