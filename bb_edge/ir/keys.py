"""Every metadata key, domain and attribute name of the artifact, in one place.

No other file spells one of them (a test checks it), so that host and device cannot disagree about a name.
What an artifact holds under each is in docs/design/artifact.md.
"""

from __future__ import annotations

PREFIX = "ai.bytesandbrains"

# --- domains ------------------------------------------------------------------------------------------
ONNX_DOMAIN = ""  # how ONNX spells its own domain on disk
ONNX_DOMAIN_ALIAS = "ai.onnx"  # how we and the ONNX documents call it
SYSCALL_DOMAIN = f"{PREFIX}.syscall"
WIRE_DOMAIN = f"{PREFIX}.wire"
GATE_DOMAIN = f"{PREFIX}.gate"
COMPOSITE_DOMAIN = f"{PREFIX}.composite"
ADDRESS_BOOK_DOMAIN = f"{PREFIX}.address_book"
MODULE_DOMAIN = f"{PREFIX}.module"  # hoisted sub-modules, named by content hash
HOIST_PREFIX = "Hoist_"  # of their names: `Hoist_<module>_<hash>`
BACKEND_DOMAIN = f"{PREFIX}.backend"  # BackendSubgraph carriers: calls of functions of this domain
TFLITE_DOMAIN = f"{PREFIX}.tflite"  # `Model`: a region of a backend function as one TFLite flatbuffer
COMPONENT_DOMAIN = f"{PREFIX}.component"  # graphs a component brings: "<slot>.forward", "<slot>.train", …
PROGRAM_DOMAIN = f"{PREFIX}.program"  # functions of programs whose author names no domain

ROLE_PREFIX = f"{PREFIX}.role"
ROLE_INDEX_DOMAIN = f"{ROLE_PREFIX}.index"
ROLE_MODEL_DOMAIN = f"{ROLE_PREFIX}.model"
ROLE_AGGREGATOR_DOMAIN = f"{ROLE_PREFIX}.aggregator"
ROLE_COMPRESSOR_DOMAIN = f"{ROLE_PREFIX}.compressor"
ROLE_DATA_LOADER_DOMAIN = f"{ROLE_PREFIX}.data_loader"
ROLE_PEER_SELECTOR_DOMAIN = f"{ROLE_PREFIX}.peer_selector"
ROLE_DOMAINS = (
    ROLE_INDEX_DOMAIN,
    ROLE_MODEL_DOMAIN,
    ROLE_AGGREGATOR_DOMAIN,
    ROLE_COMPRESSOR_DOMAIN,
    ROLE_DATA_LOADER_DOMAIN,
    ROLE_PEER_SELECTOR_DOMAIN,
)

# Roles by the names that bindings use: "<role>|<TYPE_NAME>|<slot_id>".
ROLE_BACKEND = "backend"
ROLE_INDEX = "index"
ROLE_MODEL = "model"
ROLE_AGGREGATOR = "aggregator"
ROLE_CODEC = "codec"
ROLE_DATA_SOURCE = "data_source"
ROLE_PEER_SELECTOR = "peer_selector"
ROLE_PROTOCOL = "protocol"
ROLE_OF_DOMAIN = {
    ROLE_INDEX_DOMAIN: ROLE_INDEX,
    ROLE_MODEL_DOMAIN: ROLE_MODEL,
    ROLE_AGGREGATOR_DOMAIN: ROLE_AGGREGATOR,
    ROLE_COMPRESSOR_DOMAIN: ROLE_CODEC,
    ROLE_DATA_LOADER_DOMAIN: ROLE_DATA_SOURCE,
    ROLE_PEER_SELECTOR_DOMAIN: ROLE_PEER_SELECTOR,
}
ROLES = (
    ROLE_BACKEND,
    ROLE_INDEX,
    ROLE_MODEL,
    ROLE_AGGREGATOR,
    ROLE_CODEC,
    ROLE_DATA_SOURCE,
    ROLE_PEER_SELECTOR,
    ROLE_PROTOCOL,
)

# --- model metadata -----------------------------------------------------------------------------------
COMPILED_KEY = f"{PREFIX}.compiled"  # the passport
COMPILED_VERSION = "v1"
SEALED_VERSION = "v2"  # with a digest: what bb-host writes for devices
# Model: SHA-256 of the file with these 64 hex digits as zeros; the last entry, at the end of the file.
DIGEST_KEY = f"{PREFIX}.digest"
BINDING_PREFIX = f"{PREFIX}.binding."  # + "<target>.<slot>" = "<role>|<TYPE_NAME>|<slot_id>"
MODULE_KEY = f"{PREFIX}.module"  # model: name of the root module (site ids are hashed from it)
HEARS_PREFIX = f"{PREFIX}.hears."  # + "<target>" = comma-joined classes of the peers it deals with; "*": any
ASKS_PREFIX = f"{PREFIX}.asks."  # + "<target>" = those of them that the program asks for, where not all are
TARGETS_KEY = f"{PREFIX}.targets"  # model: comma-joined partition names, in order
PROGRAM_KEY = f"{PREFIX}.program"  # model: SHA-256 of the recorded program, hex
ACCEPTS_KEY = f"{PREFIX}.accepts"  # model: comma-joined digests of the other programs whose nodes it takes
CONTRACT_PREFIX = f"{PREFIX}.contract."  # + "<class>.<class>", in order = digest of what travels between them
STRIPPED_KEY = f"{PREFIX}.stripped"  # model: "1" once stripped for the edge
TELEMETRY_PREFIX = f"{PREFIX}.telemetry."  # compile-time figures; stripped for the edge

# --- function metadata --------------------------------------------------------------------------------
MODULE_PHASE_KEY = f"{PREFIX}.module_phase"
MODULE_PHASE_BODY = "body"
MODULE_PHASE_BOOTSTRAP = "bootstrap"
BOOTSTRAP_SUFFIX = "__bootstrap"
CONCRETE_TYPE_PREFIX = f"{PREFIX}.concrete_type."  # + "<slot>" = TYPE_NAME
SLOT_ROLE_PREFIX = f"{PREFIX}.slot_role."  # + "<slot>" = role, for every slot of the function
SLOT_PEER_CLASS_PREFIX = f"{PREFIX}.slot_peer_class."  # + "<slot>" = peer class that the selector yields
SLOT_AT_PREFIX = f"{PREFIX}.slot_at."  # + "<slot>" = peer class that the slot lives on
HOME_KEY = f"{PREFIX}.home"  # root function: the module's home class
PARTITION_KEY = f"{PREFIX}.partition"  # partition main: its peer class
ENTRY_KEY = f"{PREFIX}.entry"  # "1" on functions that install exposes
BACKEND_SLOT_KEY = (
    f"{PREFIX}.backend_slot"  # backend function: slot of the backend that runs it ("" = default)
)
COMPONENT_ARITY_KEY = f"{PREFIX}.component_arity"  # "<slot>.forward": "<inputs>,<parameters>,<activations>"
CHUNK_KEY = f"{PREFIX}.chunk"  # "<slot>.fit": how many rows of a batch one run takes; 0 or absent: all
CLASS_COUNT_KEY = f"{PREFIX}.class_count"  # "<slot>.fit", ".loss": targets are numbers of so many classes
FEWEST_ROWS_KEY = f"{PREFIX}.fewest_rows"  # "<slot>.fit", and NextBatch that feeds it: a batch has so many
LABEL_CLASSES_KEY = f"{PREFIX}.label_classes"  # NextBatch: "<classes of the model>,<the number of no class>"
MEMORY_PLAN_KEY = f"{PREFIX}.memory_plan"  # backend or component function: where its values lie
INPUT_CLASS_PREFIX = f"{PREFIX}.input_class."  # + "<input>" = class scope of a g.input

# --- node metadata ------------------------------------------------------------------------------------
SLOT_KEY = f"{PREFIX}.slot"
SLOT_ID_KEY = f"{PREFIX}.slot_id"
REQUIRED_TRAIT_KEY = f"{PREFIX}.required_trait"
CONCRETE_TYPE_KEY = f"{PREFIX}.concrete_type"
INSTANCE_KEY = f"{PREFIX}.instance"
MODULE_INSTANCE_KEY = f"{PREFIX}.module_instance"
ORIGINAL_OP_KEY = f"{PREFIX}.original_op"
SOURCE_LINE_KEY = f"{PREFIX}.source"  # "file.py:12", the author's line
HOME_CLASS_KEY = f"{PREFIX}.home_class"
AT_CLASS_KEY = f"{PREFIX}.at_class"  # scope `with g.at("Client"):` at recording
ON_INVOKE_KEY = f"{PREFIX}.on_invoke"  # "1" in `with g.on_invoke():`: the host starts it
PEER_CLASS_KEY = f"{PREFIX}.peer_class"  # node: comma-joined "<output>=<class>" of PeerIdVec values
DEADLINE_NS_KEY = f"{PREFIX}.deadline_ns"
CHAIN_DEPTH_KEY = f"{PREFIX}.chain_depth"
DURABLE_KEY = f"{PREFIX}.durable"
ENOUGH_KEY = f"{PREFIX}.enough"
PORT_KEY = f"{PREFIX}.port"  # author's name of a Send or request
SYNTHESIZED_FROM_KEY = f"{PREFIX}.synthesized_from"
RECV_SLOT_ID_KEY = f"{PREFIX}.recv_site_to_slot_id"
CONTROL_INPUTS_KEY = f"{PREFIX}.control_inputs"  # number of trailing inputs that only order (after=)

# --- wire ---------------------------------------------------------------------------------------------
WIRE_ID_KEY = f"{PREFIX}.wire.wire_id"
WIRE_TRANSPORT_KEY = f"{PREFIX}.wire_transport"
WIRE_TRANSPORT_DATA = "data"
WIRE_TRANSPORT_TRIGGER_ONLY = "trigger_only"
WIRE_CORRELATION_KEY = f"{PREFIX}.wire_correlation"
CORRELATION_NONE = "none"
CORRELATION_REQUEST = "request"
CORRELATION_RESPONSE = "response"
BATCH_GROUP_ID_KEY = f"{PREFIX}.batch_group_id"
DEST_SITE_NAME_PREFIX = f"{PREFIX}.dest_site_name."  # + input name = name of the receiving value
DEST_SUFFIX_ATTR_PREFIX = "dest_suffix."  # attribute; + input name = Address bytes (/site/<id>)
SENDER_CLASS_KEY = f"{PREFIX}.wire.sender_class"  # Recv, RecvReq: the class that its senders are of
SOLE_SENDER_KEY = f"{PREFIX}.wire.sole_sender"  # RecvReq: "1" where one peer of that class should ask
SITE_IDS_KEY = f"{PREFIX}.wire.site_ids"  # Recv side: comma-joined hex site id per payload output
WIRE_TYPES_KEY = f"{PREFIX}.wire.type_hashes"  # both sides: comma-joined hex hash per payload; 0 = any
WIRE_MAX_BYTES_KEY = f"{PREFIX}.wire.max_bytes"  # both sides: comma-joined largest planned size; 0 = unknown
ANSWER_MODE_KEY = f"{PREFIX}.wire.answer_mode"  # SendReqBatched: "batch" | "each" | "none"
ANSWER_BATCH = "batch"
ANSWER_EACH = "each"
ANSWER_NONE = "none"
TRIGGER_OUTPUT_KEY = f"{PREFIX}.wire.trigger_output"  # Recv side: "1" where the last output is a trigger
WIRE_REQUEST_KEY = f"{PREFIX}.wire.request"  # reply side ops: wire_id of the ask they answer
SHAPES_KEY = f"{PREFIX}.shapes"  # wire ops: shape per payload; Contribute: of the contribution
PARTS_KEY = f"{PREFIX}.wire.parts"  # Recv side: of each payload that is a bundle; NextBatch: of a batch
COHORT_KEY = (
    f"{PREFIX}.cohort"  # Contribute, Aggregate: "<levels up>" to the execution whose sum it is, or "round"
)
COHORT_ROUND = "round"
SEND_SENTINEL_PREFIX = "__send_sentinel_"

# --- attribute names ----------------------------------------------------------------------------------
ATTR_PEER = "peer"
ATTR_DEADLINE_NS = "deadline_ns"
ATTR_PAYLOAD_TYPE = "payload_type"
CHILD_COUNT_ATTR = f"{PREFIX}.composite.child_count"
CHILD_TYPES_ATTR = f"{PREFIX}.composite.child_types"

# --- type denotations ---------------------------------------------------------------------------------
TENSOR_DENOTATION_PREFIX = f"{PREFIX}.tensor."
OPAQUE_DOMAIN = PREFIX

# --- snapshot, federation -----------------------------------------------------------------------------
COMPONENT_ENTRY_POINTS = "bytesandbrains.components"
