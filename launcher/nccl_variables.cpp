#include "launcher/nccl_variables.h"

#include <charconv>
#include <sstream>

namespace ananke {

std::span<const NumberRule> number_rules() {
  static constexpr const char *sw = "it is a switch", *channels = "NCCL has at most 64 channels, a block for each";
  static constexpr NumberRule rules[] = {
      {"NCCL_IB_TIMEOUT", 0, 31, "it is the exponent t of 4.096 us x 2^t, a field of 5 bits of a queue pair"},
      {"NCCL_IB_RETRY_CNT", 0, 7, "it is a field of 3 bits of a queue pair"},
      {"NCCL_IB_SL", 0, 15, "a service level is a field of 4 bits"},
      {"NCCL_IB_TC", 0, 255, "a traffic class is a field of 8 bits"},
      {"NCCL_IB_GID_INDEX", -1, 255, "the index is a field of 8 bits, and -1 lets NCCL choose"},
      {"NCCL_IB_PKEY", 0, 65535, "the index is a field of 16 bits"},
      {"NCCL_IB_QPS_PER_CONNECTION", 1, 128, "NCCL makes at most 128 queue pairs for a connection"},
      {"NCCL_SOCKET_NTHREADS", 1, 16, "NCCL starts at most 16 threads for a connection"},
      {"NCCL_NVLS_ENABLE", 0, 2, "0 is off, 1 on, 2 as the GPUs have it"},
      {"NCCL_CROSS_NIC", 0, 2, "0 is never, 1 always, 2 where it is no slower"},
      {"NCCL_BUFFSIZE", 1, 1L << 31, "it is a number of bytes"},
      {"NCCL_NTHREADS", 64, 512, "a block of NCCL's has 64, 128, 256 or 512 threads", true},
      {"NCCL_MIN_CTAS", 1, 64, channels},
      {"NCCL_MAX_CTAS", 1, 64, channels},
      {"NCCL_MIN_NCHANNELS", 1, 64, channels},
      {"NCCL_MAX_NCHANNELS", 1, 64, channels},
      {"NCCL_CGA_CLUSTER_SIZE", 0, 8, "a cluster of NCCL's has at most 8 blocks"},
      {"NCCL_NET_GDR_READ", 0, 1, sw},
      {"NCCL_IB_DISABLE", 0, 1, sw},
      {"NCCL_P2P_DISABLE", 0, 1, sw},
      {"NCCL_SHM_DISABLE", 0, 1, sw},
      {"NCCL_COMM_BLOCKING", 0, 1, sw},
      {"NCCL_PXN_DISABLE", 0, 1, sw},
      {"NCCL_CUMEM_ENABLE", 0, 1, sw},
      {"NCCL_DMABUF_ENABLE", 0, 1, sw},
  };
  return rules;
}

std::span<const WordRule> word_rules() {
  static const std::vector<WordRule> rules{
      {"NCCL_SOCKET_FAMILY", {"AF_INET", "AF_INET6"}},
      {"NCCL_IB_ADDR_FAMILY", {"AF_INET", "AF_INET6"}},
      {"NCCL_DEBUG", {"VERSION", "WARN", "INFO", "ABORT", "TRACE"}},
      {"NCCL_PROTO", {"LL", "LL128", "Simple"}, true},
      {"NCCL_ALGO", {"Tree", "Ring", "CollnetDirect", "CollnetChain", "NVLS", "NVLSTree", "PAT"}, true},
      {"NCCL_NET_GDR_LEVEL", {"LOC", "NVL", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS"}, false, true},
      {"NCCL_P2P_LEVEL", {"LOC", "NVL", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS"}, false, true},
  };
  return rules;
}

const std::vector<std::string>& known_nccl_names() {
  static const std::vector<std::string> names = [] {
    std::istringstream words(
        "ALGO ALLOC_P2P_NET_LL_BUFFERS BUFFSIZE CGA_CLUSTER_SIZE CHECKS_DISABLE CHECK_POINTERS CHUNK_SIZE "
        "COLLNET_ENABLE COLLNET_NODE_THRESHOLD COMM_BLOCKING COMM_ID COMM_SHRINK_SHARE_RESOURCES "
        "COMM_SPLIT_SHARE_RESOURCES CONF_FILE CONNECT_ROUND_MAX_PEERS CREATE_THREAD_CONTEXT CROSS_NIC "
        "CUMEM_ENABLE CUMEM_HOST_ENABLE DEBUG DEBUG_FILE DEBUG_SUBSYS DEBUG_TIMESTAMP_FORMAT DEBUG_TIMESTAMP_LEVELS "
        "DEV_RUNTIME_DISABLE DMABUF_ENABLE DUMP_COMM_DEBUG ENV_PLUGIN GDRCOPY_ENABLE GDRCOPY_FIFO_ENABLE "
        "GDRCOPY_FLUSH_ENABLE GDRCOPY_SYNC_ENABLE GDR_FLUSH_DISABLE GIN_ENABLE GIN_TYPE GRAPH_DUMP_FILE "
        "GRAPH_DUMP_FILE_RANK GRAPH_FILE GRAPH_HELPER_DISABLE GRAPH_MIXING_SUPPORT GRAPH_REGISTER HOSTID "
        "IB_ADAPTIVE_ROUTING IB_ADDR_FAMILY IB_ADDR_RANGE IB_AR_THRESHOLD IB_CUDA_SUPPORT IB_DATA_DIRECT IB_DISABLE "
        "IB_ECE_ENABLE IB_FIFO_TC IB_GID_INDEX IB_HCA IB_MERGE_NICS IB_MERGE_VFS IB_MQP_RETRY_ALL IB_MQP_RETRY_CNT "
        "IB_MQP_RETRY_SLEEP_MSEC IB_PCI_RELAXED_ORDERING IB_PKEY IB_QPS_PER_CONNECTION IB_RETRY_CNT "
        "IB_RETURN_ASYNC_EVENTS IB_ROCE_VERSION_NUM IB_SL IB_SPLIT_DATA_ON_QPS IB_TC IB_TIMEOUT IB_USE_INLINE "
        "IB_WARN_RAIL_LOCAL IGNORE_CPU_AFFINITY IGNORE_DISABLED_P2P IPC_USE_ABSTRACT_SOCKET L1_SHARED_MEMORY_CARVEOUT "
        "LAUNCH_MODE LAUNCH_ORDER_IMPLICIT LAUNCH_RACE_FATAL LEGACY_CUDA_REGISTER LL128_BUFFSIZE LL128_NTHREADS "
        "LL_BUFFSIZE LL_THRESHOLD LOCAL_REGISTER MAX_CTAS MAX_NCHANNELS MAX_NRINGS MAX_P2P_NCHANNELS "
        "MEM_SYNC_DOMAIN MIN_CTAS MIN_NCHANNELS MIN_NRINGS MIN_P2P_NCHANNELS MNNVL_CLIQUE_ID MNNVL_ENABLE MNNVL_UUID "
        "NCHANNELS_PER_NET_PEER NET NETDEVS_POLICY NET_DISABLE_INTRA NET_FORCE_FLUSH NET_FORCE_MERGE NET_GDR_C2C "
        "NET_GDR_LEVEL NET_GDR_READ NET_MERGE_LEVEL NET_OPTIONAL_RECV_COMPLETION NET_OVERHEAD NET_PLUGIN "
        "NET_SHARED_BUFFERS NET_SHARED_COMMS NSOCKS_PERTHREAD NTHREADS NVB_DISABLE NVB_PRECONNECT "
        "NVLSTREE_MAX_CHUNKSIZE "
        "NVLS_CHUNKSIZE NVLS_ENABLE NVLS_NCHANNELS NVTX_DISABLE OOB_NET_ENABLE OOB_NET_IFNAME P2P_DIRECT_DISABLE "
        "P2P_DISABLE P2P_EPOCH_ENABLE P2P_LEVEL P2P_LL_THRESHOLD P2P_NET_CHUNKSIZE P2P_NVL_CHUNKSIZE "
        "P2P_PCI_CHUNKSIZE P2P_PER_CHANNEL_NET_PROTO P2P_PXN_LEVEL P2P_READ_ENABLE P2P_SCHEDULE_GROUP_SIZE "
        "P2P_USE_CUDA_MEMCPY PAT_ENABLE PROFILER_PLUGIN PROFILE_EVENT_MASK PROGRESS_APPENDOP_FREQ PROTO PXN_C2C "
        "PXN_DISABLE RAS_ADDR RAS_ENABLE RAS_TIMEOUT_FACTOR RMA_PLUGIN RUNTIME_CONNECT SCATTER_XNIC SET_CPU_STACK_SIZE "
        "SET_STACK_SIZE SET_THREAD_NAME SHM_DISABLE SHM_LOCALITY SHM_MEMCPY_MODE SHM_USE_CUDA_MEMCPY "
        "SINGLE_RING_THRESHOLD SOCKET_FAMILY SOCKET_IFNAME SOCKET_INLINE SOCKET_MIN_TASKSIZE SOCKET_NTHREADS "
        "SOCKET_POLL_TIMEOUT_MSEC SOCKET_RETRY_CNT SOCKET_RETRY_SLEEP_MSEC SOCKET_RETRY_TIMEOUT_MSEC "
        "SPARSE_P2P_THRESHOLD SYM_CTAS SYM_KERNEL THREAD_THRESHOLDS TOPO_DUMP_FILE TOPO_DUMP_FILE_RANK TOPO_FILE "
        "TREE_THRESHOLD TUNER_CONFIG_FILE TUNER_PLUGIN UID_STAGGER_RATE UID_STAGGER_THRESHOLD "
        "UNPACK_DOUBLE_NCHANNELS WARN_ENABLE_DEBUG_INFO WIN_ENABLE WIN_STRIDE WORK_ARGS_BYTES WORK_FIFO_BYTES "
        // of modules, builds and containers
        "DIR HOME INCLUDE INCLUDE_DIR LIB LIBRARY LIB_DIR PATH PREFIX ROOT ROOT_DIR VERSION TESTS_HOME");
    std::vector<std::string> all;
    for (std::string word; words >> word;) all.push_back("NCCL_" + word);
    return all;
  }();
  return names;
}

std::optional<long> nccl_number(std::string_view text) {
  const bool minus = text.starts_with('-');
  if (minus) text.remove_prefix(1);
  const bool hexadecimal = text.starts_with("0x") || text.starts_with("0X");
  if (hexadecimal) text.remove_prefix(2);
  long value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, hexadecimal ? 16 : 10);
  if (text.empty() || text[0] == '-' || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return minus ? -value : value;
}

}  // namespace ananke
