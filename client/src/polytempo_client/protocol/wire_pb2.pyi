from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Enrolment(_message.Message):
    __slots__ = ("code", "token_sha256")
    CODE_FIELD_NUMBER: _ClassVar[int]
    TOKEN_SHA256_FIELD_NUMBER: _ClassVar[int]
    code: str
    token_sha256: str
    def __init__(self, code: _Optional[str] = ..., token_sha256: _Optional[str] = ...) -> None: ...

class Enrolled(_message.Message):
    __slots__ = ("client", "expires")
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_FIELD_NUMBER: _ClassVar[int]
    client: int
    expires: float
    def __init__(self, client: _Optional[int] = ..., expires: _Optional[float] = ...) -> None: ...

class Frame(_message.Message):
    __slots__ = ("head", "data")
    HEAD_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    head: Head
    data: bytes
    def __init__(self, head: _Optional[_Union[Head, _Mapping]] = ..., data: _Optional[bytes] = ...) -> None: ...

class Head(_message.Message):
    __slots__ = ("size", "request", "answers", "hello", "ready", "push", "pull", "leave", "branch", "welcome", "accepted", "refusal", "task", "model", "report", "membership")
    SIZE_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    HELLO_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    PUSH_FIELD_NUMBER: _ClassVar[int]
    PULL_FIELD_NUMBER: _ClassVar[int]
    LEAVE_FIELD_NUMBER: _ClassVar[int]
    BRANCH_FIELD_NUMBER: _ClassVar[int]
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    MEMBERSHIP_FIELD_NUMBER: _ClassVar[int]
    size: int
    request: int
    answers: int
    hello: Hello
    ready: Ready
    push: Push
    pull: Pull
    leave: Leave
    branch: Branch
    welcome: Welcome
    accepted: Accepted
    refusal: Refusal
    task: Task
    model: Model
    report: Report
    membership: Membership
    def __init__(self, size: _Optional[int] = ..., request: _Optional[int] = ..., answers: _Optional[int] = ..., hello: _Optional[_Union[Hello, _Mapping]] = ..., ready: _Optional[_Union[Ready, _Mapping]] = ..., push: _Optional[_Union[Push, _Mapping]] = ..., pull: _Optional[_Union[Pull, _Mapping]] = ..., leave: _Optional[_Union[Leave, _Mapping]] = ..., branch: _Optional[_Union[Branch, _Mapping]] = ..., welcome: _Optional[_Union[Welcome, _Mapping]] = ..., accepted: _Optional[_Union[Accepted, _Mapping]] = ..., refusal: _Optional[_Union[Refusal, _Mapping]] = ..., task: _Optional[_Union[Task, _Mapping]] = ..., model: _Optional[_Union[Model, _Mapping]] = ..., report: _Optional[_Union[Report, _Mapping]] = ..., membership: _Optional[_Union[Membership, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("task", "heeded", "uploads", "downloads", "protocol")
    TASK_FIELD_NUMBER: _ClassVar[int]
    HEEDED_FIELD_NUMBER: _ClassVar[int]
    UPLOADS_FIELD_NUMBER: _ClassVar[int]
    DOWNLOADS_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    task: int
    heeded: int
    uploads: _containers.RepeatedScalarFieldContainer[str]
    downloads: _containers.RepeatedScalarFieldContainer[str]
    protocol: int
    def __init__(self, task: _Optional[int] = ..., heeded: _Optional[int] = ..., uploads: _Optional[_Iterable[str]] = ..., downloads: _Optional[_Iterable[str]] = ..., protocol: _Optional[int] = ...) -> None: ...

class Ready(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Push(_message.Message):
    __slots__ = ("task", "base", "samples", "steps", "chosen", "answers", "ready", "encoding", "accuracy", "loss", "jury", "used", "alone")
    TASK_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    CHOSEN_FIELD_NUMBER: _ClassVar[int]
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    ENCODING_FIELD_NUMBER: _ClassVar[int]
    ACCURACY_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    JURY_FIELD_NUMBER: _ClassVar[int]
    USED_FIELD_NUMBER: _ClassVar[int]
    ALONE_FIELD_NUMBER: _ClassVar[int]
    task: int
    base: int
    samples: int
    steps: int
    chosen: int
    answers: str
    ready: bool
    encoding: str
    accuracy: float
    loss: float
    jury: JuryScores
    used: float
    alone: float
    def __init__(self, task: _Optional[int] = ..., base: _Optional[int] = ..., samples: _Optional[int] = ..., steps: _Optional[int] = ..., chosen: _Optional[int] = ..., answers: _Optional[str] = ..., ready: bool = ..., encoding: _Optional[str] = ..., accuracy: _Optional[float] = ..., loss: _Optional[float] = ..., jury: _Optional[_Union[JuryScores, _Mapping]] = ..., used: _Optional[float] = ..., alone: _Optional[float] = ...) -> None: ...

class JuryScores(_message.Message):
    __slots__ = ("rows", "errors", "briers", "changed")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    ERRORS_FIELD_NUMBER: _ClassVar[int]
    BRIERS_FIELD_NUMBER: _ClassVar[int]
    CHANGED_FIELD_NUMBER: _ClassVar[int]
    rows: int
    errors: _containers.RepeatedScalarFieldContainer[float]
    briers: _containers.RepeatedScalarFieldContainer[float]
    changed: bool
    def __init__(self, rows: _Optional[int] = ..., errors: _Optional[_Iterable[float]] = ..., briers: _Optional[_Iterable[float]] = ..., changed: bool = ...) -> None: ...

class Pull(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Leave(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Branch(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("client", "names", "shapes", "parameters", "seed", "task", "upload", "download", "frozen", "frame_bytes", "protocol")
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    SHAPES_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    UPLOAD_FIELD_NUMBER: _ClassVar[int]
    DOWNLOAD_FIELD_NUMBER: _ClassVar[int]
    FROZEN_FIELD_NUMBER: _ClassVar[int]
    FRAME_BYTES_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    client: int
    names: _containers.RepeatedScalarFieldContainer[str]
    shapes: _containers.RepeatedCompositeFieldContainer[Shape]
    parameters: int
    seed: int
    task: int
    upload: str
    download: str
    frozen: str
    frame_bytes: int
    protocol: int
    def __init__(self, client: _Optional[int] = ..., names: _Optional[_Iterable[str]] = ..., shapes: _Optional[_Iterable[_Union[Shape, _Mapping]]] = ..., parameters: _Optional[int] = ..., seed: _Optional[int] = ..., task: _Optional[int] = ..., upload: _Optional[str] = ..., download: _Optional[str] = ..., frozen: _Optional[str] = ..., frame_bytes: _Optional[int] = ..., protocol: _Optional[int] = ...) -> None: ...

class Shape(_message.Message):
    __slots__ = ("sizes",)
    SIZES_FIELD_NUMBER: _ClassVar[int]
    sizes: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, sizes: _Optional[_Iterable[int]] = ...) -> None: ...

class Accepted(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Refusal(_message.Message):
    __slots__ = ("reason", "again", "replaced", "void", "failed", "ends")
    REASON_FIELD_NUMBER: _ClassVar[int]
    AGAIN_FIELD_NUMBER: _ClassVar[int]
    REPLACED_FIELD_NUMBER: _ClassVar[int]
    VOID_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    ENDS_FIELD_NUMBER: _ClassVar[int]
    reason: str
    again: bool
    replaced: bool
    void: bool
    failed: bool
    ends: bool
    def __init__(self, reason: _Optional[str] = ..., again: bool = ..., replaced: bool = ..., void: bool = ..., failed: bool = ..., ends: bool = ...) -> None: ...

class Task(_message.Message):
    __slots__ = ("number", "version", "count", "work", "objective", "candidate_versions", "candidate_use", "questions", "trainable", "personal", "answered")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    WORK_FIELD_NUMBER: _ClassVar[int]
    OBJECTIVE_FIELD_NUMBER: _ClassVar[int]
    CANDIDATE_VERSIONS_FIELD_NUMBER: _ClassVar[int]
    CANDIDATE_USE_FIELD_NUMBER: _ClassVar[int]
    QUESTIONS_FIELD_NUMBER: _ClassVar[int]
    TRAINABLE_FIELD_NUMBER: _ClassVar[int]
    PERSONAL_FIELD_NUMBER: _ClassVar[int]
    ANSWERED_FIELD_NUMBER: _ClassVar[int]
    number: int
    version: int
    count: int
    work: Work
    objective: Objective
    candidate_versions: _containers.RepeatedScalarFieldContainer[int]
    candidate_use: str
    questions: _containers.RepeatedScalarFieldContainer[str]
    trainable: _containers.RepeatedScalarFieldContainer[str]
    personal: Personal
    answered: int
    def __init__(self, number: _Optional[int] = ..., version: _Optional[int] = ..., count: _Optional[int] = ..., work: _Optional[_Union[Work, _Mapping]] = ..., objective: _Optional[_Union[Objective, _Mapping]] = ..., candidate_versions: _Optional[_Iterable[int]] = ..., candidate_use: _Optional[str] = ..., questions: _Optional[_Iterable[str]] = ..., trainable: _Optional[_Iterable[str]] = ..., personal: _Optional[_Union[Personal, _Mapping]] = ..., answered: _Optional[int] = ...) -> None: ...

class Personal(_message.Message):
    __slots__ = ("rule", "parameters", "pool")
    class ParametersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    RULE_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    POOL_FIELD_NUMBER: _ClassVar[int]
    rule: str
    parameters: _containers.ScalarMap[str, float]
    pool: JuryScores
    def __init__(self, rule: _Optional[str] = ..., parameters: _Optional[_Mapping[str, float]] = ..., pool: _Optional[_Union[JuryScores, _Mapping]] = ...) -> None: ...

class Work(_message.Message):
    __slots__ = ("steps", "epochs", "batch_size", "optimizer", "lr", "momentum", "weight_decay", "stream")
    STEPS_FIELD_NUMBER: _ClassVar[int]
    EPOCHS_FIELD_NUMBER: _ClassVar[int]
    BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    OPTIMIZER_FIELD_NUMBER: _ClassVar[int]
    LR_FIELD_NUMBER: _ClassVar[int]
    MOMENTUM_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_DECAY_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    steps: int
    epochs: int
    batch_size: int
    optimizer: str
    lr: float
    momentum: float
    weight_decay: float
    stream: int
    def __init__(self, steps: _Optional[int] = ..., epochs: _Optional[int] = ..., batch_size: _Optional[int] = ..., optimizer: _Optional[str] = ..., lr: _Optional[float] = ..., momentum: _Optional[float] = ..., weight_decay: _Optional[float] = ..., stream: _Optional[int] = ...) -> None: ...

class Objective(_message.Message):
    __slots__ = ("proximal", "cosine", "l2")
    PROXIMAL_FIELD_NUMBER: _ClassVar[int]
    COSINE_FIELD_NUMBER: _ClassVar[int]
    L2_FIELD_NUMBER: _ClassVar[int]
    proximal: float
    cosine: float
    l2: float
    def __init__(self, proximal: _Optional[float] = ..., cosine: _Optional[float] = ..., l2: _Optional[float] = ...) -> None: ...

class Model(_message.Message):
    __slots__ = ("number", "version", "task", "rebase", "personal", "answered")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    REBASE_FIELD_NUMBER: _ClassVar[int]
    PERSONAL_FIELD_NUMBER: _ClassVar[int]
    ANSWERED_FIELD_NUMBER: _ClassVar[int]
    number: int
    version: int
    task: int
    rebase: bool
    personal: Personal
    answered: int
    def __init__(self, number: _Optional[int] = ..., version: _Optional[int] = ..., task: _Optional[int] = ..., rebase: bool = ..., personal: _Optional[_Union[Personal, _Mapping]] = ..., answered: _Optional[int] = ...) -> None: ...

class Report(_message.Message):
    __slots__ = ("number", "task")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    number: int
    task: int
    def __init__(self, number: _Optional[int] = ..., task: _Optional[int] = ...) -> None: ...

class Membership(_message.Message):
    __slots__ = ("branch", "version", "members")
    BRANCH_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    branch: int
    version: int
    members: int
    def __init__(self, branch: _Optional[int] = ..., version: _Optional[int] = ..., members: _Optional[int] = ...) -> None: ...
